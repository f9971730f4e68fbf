"""Memory agents (sleeptime): agents that tend the memory of another in the background."""

from __future__ import annotations

from strata.agent_loop.domain.agent_types import AGENT_TYPES
from strata.agent_loop.domain.agents import Agent
from strata.agent_loop.domain.store import Request
from strata.agent_loop.domain.tool_rules import base_rules
from strata.agent_loop.prompts.base import base_prompt
from strata.shared.agent_types import AgentType
from strata.shared.errors import FieldViolation, InvalidArgumentError
from strata.shared.ids import new_id

DEFAULT_FREQUENCY = 5
MAX_FREQUENCY = 1000
MEMORY_AGENT_TYPES = frozenset({AgentType.SLEEPTIME, AgentType.VOICE_SLEEPTIME})
"""Types that tend the memory of others; none tends theirs."""

PERSONA_LABEL = "memory_persona"
PERSONA = (
    "I tend the memory of an assistant that talks with a person. I read what was said since I read"
    " last, keep what will matter later, correct what has changed, and leave out the rest. I write"
    " facts with their dates, in short sentences, each in the block where it belongs."
)

_SUFFIX = "-sleeptime"
_MAX_NAME = 128


def memory_agent_for(agent: Agent) -> Agent:
    """Returns a new memory agent for an agent: with its model, and the tools of its type."""
    traits = AGENT_TYPES[AgentType.SLEEPTIME]
    return Agent(
        id=new_id("agent"),
        name=agent.name[: _MAX_NAME - len(_SUFFIX)] + _SUFFIX,
        type=traits.type,
        system=base_prompt(traits.type),
        description=f"Tends the memory of {agent.name}.",
        model=agent.model,
        tools=traits.tools,
        tool_rules=base_rules(traits.tools, ()),
        timezone=agent.timezone,
        tends_agent_id=agent.id,
    )


def creation_of_memory_agent(agent_id: str) -> Request:
    """Returns the request that makes the memory agent of an agent; always the same one.

    A client cannot send such an id: it contains a space.
    """
    return Request(f"memory agent of {agent_id}", "memory agent")


def needs_no_memory_agent(agent_type: AgentType) -> InvalidArgumentError:
    """Returns the error for a memory agent that shall have a memory agent."""
    problem = f"must not be true for a {agent_type}: it is a memory agent itself"
    return InvalidArgumentError(
        f"enable_sleeptime {problem}.", violations=[FieldViolation("enable_sleeptime", problem)]
    )


def check_frequency_is_used(agent: Agent) -> None:
    """Refuses a frequency for an agent without a memory agent.

    Raises:
        InvalidArgumentError: INVALID_FIELD.
    """
    if not agent.memory_agent_id:
        problem = "needs a memory agent: set enable_sleeptime too"
        raise InvalidArgumentError(
            f"sleeptime_agent_frequency {problem}.",
            violations=[FieldViolation("sleeptime_agent_frequency", problem)],
        )
