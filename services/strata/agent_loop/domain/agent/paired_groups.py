"""Groups of an agent and its memory agent: the kinds `sleeptime` and `voice_sleeptime`.

Such a group describes an existing pair (decision 0054): its manager agent is the agent, its only
member the memory agent. How often the memory agent runs is a setting of the agent, which the group
shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strata.agent_loop.domain.agent.groups import ManagerConfig, ManagerType, wrong_field
from strata.agent_loop.domain.agent.types import AGENT_TYPES
from strata.protocol.errors import FieldViolation
from strata.shared.agent_types import AgentType

SETTINGS_OF_THE_AGENT = (
    "sleeptime_agent_frequency",
    "max_message_buffer_length",
    "min_message_buffer_length",
)
"""Fields of `ManagerConfig` whose values are the manager agent's."""


@dataclass(frozen=True, slots=True)
class ManagerAgent:
    """The manager agent of a pair, with the settings that a group shows.

    Attributes:
        memory_agent_id: Empty if it has no memory agent.
        sleeptime_agent_frequency: See `Agent.sleeptime_frequency`.
        max_message_buffer_length: 0 if it is not a voice agent.
        min_message_buffer_length: 0 if it is not a voice agent.
    """

    id: str
    type: AgentType
    memory_agent_id: str = ""
    sleeptime_agent_frequency: int = 0
    max_message_buffer_length: int = 0
    min_message_buffer_length: int = 0


def members_of_pair(
    manager: ManagerConfig, agent: ManagerAgent, agent_ids: Sequence[str], field: str
) -> tuple[str, ...]:
    """Returns the members of a group of a pair: the memory agent of its manager agent.

    Args:
        manager: The requested manager; its kind is one of `PAIRED`.
        agent: The manager agent.
        agent_ids: The requested members; empty selects the memory agent.
        field: The field of the request that holds the members.

    Raises:
        InvalidArgumentError: INVALID_FIELD, naming every wrong field.
    """
    violations = [*_violations(manager, agent, agent_ids, field)]
    if violations:
        raise wrong_field(violations)
    return (agent.memory_agent_id,)


def _violations(
    manager: ManagerConfig, agent: ManagerAgent, agent_ids: Sequence[str], field: str
) -> Iterator[FieldViolation]:
    voice = AGENT_TYPES[agent.type].buffered
    kind = ManagerType.VOICE_SLEEPTIME if voice else ManagerType.SLEEPTIME
    if manager.type is not kind:
        yield FieldViolation("manager.type", f"must be {kind}: the manager agent is a {agent.type}")
    if not agent.memory_agent_id:
        yield FieldViolation(
            "manager.manager_agent_id",
            f"has no memory agent: turn on enable_sleeptime for {agent.id}, and give its memory"
            " agent as the only member, or no member",
        )
    elif agent_ids and list(agent_ids) != [agent.memory_agent_id]:
        yield FieldViolation(
            field,
            f"must contain only {agent.memory_agent_id}, the memory agent of the manager agent, "
            "or nothing",
        )
    for name in SETTINGS_OF_THE_AGENT:
        expected, actual = getattr(manager, name), getattr(agent, name)
        if expected not in (0, actual):
            yield FieldViolation(
                f"manager.{name}",
                f"is {actual} for the manager agent: change it there, with UpdateAgent",
            )
