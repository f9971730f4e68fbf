"""Memory agents (sleeptime): agents that maintain another agent's memory in the background."""

from __future__ import annotations

from strata.agent_loop.domain.agent.agents import Agent, AgentPatch
from strata.agent_loop.domain.agent.message_buffer import BufferLengths, buffer_lengths
from strata.agent_loop.domain.agent.types import AGENT_TYPES
from strata.agent_loop.prompts.base import base_prompt
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.agent_types import AgentType
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id
from strata.shared.names import MAX_AGENT_NAME_CHARS

DEFAULT_FREQUENCY = 5
MAX_FREQUENCY = 1000

PERSONA_LABEL = "memory_persona"
PERSONA_DESCRIPTION = (
    "Who you are and how you look after the memory of the assistant. It guides what you keep; facts"
    " from conversations belong in the other blocks."
)
PERSONA = (
    "I tend the memory of an assistant that talks with a person. I read what was said since I read"
    " last, keep what will matter later, correct what has changed, and leave out the rest. I write"
    " facts with their dates, in short sentences, each in the block where it belongs."
)

_SUFFIX = "-sleeptime"


def memory_agent_for(agent: Agent) -> Agent:
    """Returns a new memory agent for an agent, with its model and the tools of its type."""
    traits = AGENT_TYPES[AGENT_TYPES[agent.type].memory_agent]
    return Agent(
        id=new_id("agent"),
        name=agent.name[: MAX_AGENT_NAME_CHARS - len(_SUFFIX)] + _SUFFIX,
        type=traits.type,
        system=base_prompt(traits.type),
        description=f"Tends the memory of {agent.name}.",
        model=agent.model,
        tools=traits.tools,
        tool_rules=traits.default_rules(traits.tools),
        timezone=agent.timezone,
        tends_agent_id=agent.id,
    )


def creation_of_memory_agent(agent_id: str) -> RequestKey:
    """Returns the fixed request key for the creation of an agent's memory agent.

    It contains a space, which clients cannot send in a request id.
    """
    return RequestKey(f"memory agent of {agent_id}", "memory agent")


def needs_no_memory_agent(agent_type: AgentType) -> InvalidArgumentError:
    """Returns the error for enabling a memory agent for a memory agent."""
    problem = f"must not be true for a {agent_type}: it is a memory agent itself"
    return InvalidArgumentError(
        f"enable_sleeptime {problem}.", violations=[FieldViolation("enable_sleeptime", problem)]
    )


def frequency_of(agent_type: AgentType, frequency: int) -> int:
    """Returns after how many turns the memory agent runs; 0 if the buffer decides.

    Args:
        agent_type: Type of the agent that has the memory agent.
        frequency: The requested number; 0 for the default.
    """
    return 0 if AGENT_TYPES[agent_type].buffered else frequency or DEFAULT_FREQUENCY


def has_no_frequency(agent_type: AgentType) -> InvalidArgumentError:
    """Returns the error for a frequency of an agent whose buffer decides."""
    problem = (
        f"does not belong to a {agent_type}: its memory agent runs when its window holds more"
        " messages than max_message_buffer_length"
    )
    return InvalidArgumentError(
        f"sleeptime_agent_frequency {problem}.",
        violations=[FieldViolation("sleeptime_agent_frequency", problem)],
    )


def has_no_buffer(
    agent_type: AgentType, longest: bool = True, shortest: bool = True
) -> InvalidArgumentError:
    """Returns the error for lengths of a buffer that an agent does not have.

    Args:
        agent_type: Type of the agent.
        longest: Whether the request sets the longest length.
        shortest: Whether the request sets the shortest length.
    """
    names = ("max_message_buffer_length", "min_message_buffer_length")
    problem = f"does not belong to a {agent_type}, only to a {AgentType.VOICE_CONVO}"
    violations = [
        FieldViolation(name, problem)
        for name, is_set in zip(names, (longest, shortest), strict=True)
        if is_set
    ]
    return InvalidArgumentError(f"{violations[0].field} {problem}.", violations=violations)


def changed_buffer(agent: Agent, patch: AgentPatch) -> BufferLengths:
    """Returns the buffer lengths of an agent after a change.

    Raises:
        InvalidArgumentError: INVALID_FIELD: the agent has no buffer, or the shortest length is too
            long.
    """
    if agent.buffer is None:
        raise has_no_buffer(agent.type, patch.max_buffer is not None, patch.min_buffer is not None)
    changed = buffer_lengths(
        agent.buffer.longest if patch.max_buffer is None else patch.max_buffer,
        agent.buffer.shortest if patch.min_buffer is None else patch.min_buffer,
    )
    if changed.problem is not None:
        raise InvalidArgumentError(
            f"min_message_buffer_length {changed.problem}.",
            violations=[FieldViolation("min_message_buffer_length", changed.problem)],
        )
    return changed


def keeps_memory_agent(agent_type: AgentType) -> InvalidArgumentError:
    """Returns the error for removing the memory agent of an agent whose type needs one."""
    problem = f"must be true for a {agent_type}"
    return InvalidArgumentError(
        f"enable_sleeptime {problem}.", violations=[FieldViolation("enable_sleeptime", problem)]
    )


def check_frequency_is_used(agent: Agent) -> None:
    """Refuses a frequency for an agent without a memory agent, or whose buffer decides.

    Raises:
        InvalidArgumentError: INVALID_FIELD.
    """
    if AGENT_TYPES[agent.type].buffered:
        raise has_no_frequency(agent.type)
    if not agent.memory_agent_id:
        problem = "needs a memory agent: set enable_sleeptime too"
        raise InvalidArgumentError(
            f"sleeptime_agent_frequency {problem}.",
            violations=[FieldViolation("sleeptime_agent_frequency", problem)],
        )
