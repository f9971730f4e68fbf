"""Groups of agents, the commands on them, and the protocol of their store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.idempotency.keys import RequestKey

MAX_MEMBERS = 32
MAX_SHARED_BLOCKS = 64
MAX_TURNS = 100
DEFAULT_TERMINATION_TOKEN = "DONE!"  # noqa: S105 - the word that ends a run


class ManagerType(StrEnum):
    """How a group chooses the member that replies, by wire name."""

    ROUND_ROBIN = "round_robin"
    SUPERVISOR = "supervisor"
    DYNAMIC = "dynamic"
    SLEEPTIME = "sleeptime"
    VOICE_SLEEPTIME = "voice_sleeptime"
    SWARM = "swarm"


MANAGED = frozenset(
    {
        ManagerType.SUPERVISOR,
        ManagerType.DYNAMIC,
        ManagerType.SLEEPTIME,
        ManagerType.VOICE_SLEEPTIME,
    }
)
"""Kinds with a manager agent."""
PAIRED = frozenset({ManagerType.SLEEPTIME, ManagerType.VOICE_SLEEPTIME})
"""Kinds that pair an agent with its memory agent: see `paired_groups`."""
IN_TURNS = frozenset({ManagerType.ROUND_ROBIN, ManagerType.DYNAMIC, ManagerType.SWARM})
"""Kinds with a limited number of turns of members."""


def wrong_member_count(field: str, count: int) -> FieldViolation:
    """Returns the violation for a wrong number of members."""
    return FieldViolation(field, f"must hold 1 to {MAX_MEMBERS} agents, not {count}")


def needs_manager_agent(kind: ManagerType) -> FieldViolation:
    """Returns the violation for a group of a kind in `MANAGED` without a manager agent."""
    problem = f"is required: a group of the kind {kind} needs a manager agent"
    return FieldViolation("manager.manager_agent_id", problem)


def wrong_field(violations: Sequence[FieldViolation]) -> InvalidArgumentError:
    """Returns the error for fields that contradict stored data.

    Args:
        violations: At least one.
    """
    first = violations[0]
    return InvalidArgumentError(f"{first.field} {first.description}.", violations=violations)


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """How a group chooses the member that replies; fields that its kind lacks are 0 or empty.

    Attributes:
        max_turns: Maximum number of turns of members in one run; 0 means one for each member.
        termination_token: Text that ends a run.
        sleeptime_agent_frequency: Value of the manager agent. In a command, 0 in this and the next
            two fields accepts the manager agent's value.
        max_message_buffer_length: Value of the manager agent.
        min_message_buffer_length: Value of the manager agent.
    """

    type: ManagerType = ManagerType.ROUND_ROBIN
    manager_agent_id: str = ""
    max_turns: int = 0
    termination_token: str = ""
    sleeptime_agent_frequency: int = 0
    max_message_buffer_length: int = 0
    min_message_buffer_length: int = 0


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An agent of a group, with the name and description that the others see."""

    agent_id: str
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A stored group, without agents that are being deleted.

    Attributes:
        handed_to: The agent to which the conversation was handed over last; empty for none.
    """

    id: str
    description: str
    manager: ManagerConfig
    members: tuple[GroupMember, ...]
    manager_agent: GroupMember | None
    shared_block_ids: tuple[str, ...]
    revision: int
    create_time: datetime
    update_time: datetime
    active: bool = True
    handed_to: str = ""

    @property
    def holder_agent_id(self) -> str:
        """The member that answers the next message of a swarm; empty in other groups.

        It is the first member if the conversation was never handed over, or if the agent it was
        handed to has left the group.
        """
        if self.manager.type is not ManagerType.SWARM or not self.members:
            return ""
        ids = [member.agent_id for member in self.members]
        return self.handed_to if self.handed_to in ids else ids[0]


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Creates a group.

    Attributes:
        agent_ids: The members; for a kind in `PAIRED`, empty selects the memory agent.
    """

    id: str
    description: str
    manager: ManagerConfig
    agent_ids: tuple[str, ...]
    shared_block_ids: tuple[str, ...]
    request: RequestKey = field(default_factory=RequestKey)


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Changes a group; None leaves a field unchanged.

    Attributes:
        agent_ids: The members; for a kind in `PAIRED`, empty selects the memory agent.
        expected_revision: Fail if the group is not at this revision; 0 means any.
    """

    group_id: str
    description: str | None = None
    manager: ManagerConfig | None = None
    agent_ids: tuple[str, ...] | None = None
    shared_block_ids: tuple[str, ...] | None = None
    expected_revision: int = 0
    request: RequestKey = field(default_factory=RequestKey)


@dataclass(frozen=True, slots=True)
class GroupTool:
    """A tool that an agent is offered only in a run of its group.

    Attributes:
        name: Name of the tool.
        members: The agents that it can reach, in the order of the group.
    """

    name: str
    members: tuple[GroupMember, ...]


class GroupStore(Protocol):
    """Groups of the calling project."""

    async def insert(self, command: CreateGroup) -> Group:
        """Stores a group in creation; returns the existing one if the request is a repetition.

        Raises:
            InvalidArgumentError: INVALID_FIELD, as `check`.
            NotFoundError: AGENT_NOT_FOUND.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def activate(self, group_id: str) -> Group:
        """Ends the creation of a group.

        Raises:
            NotFoundError: GROUP_NOT_FOUND.
        """
        ...

    async def get(self, group_id: str) -> Group:
        """Returns an active group.

        Raises:
            NotFoundError: GROUP_NOT_FOUND.
        """
        ...

    async def page(
        self, manager_type: ManagerType | None, agent_id: str, limit: int, after: str
    ) -> Sequence[Group]:
        """Returns up to ``limit`` active groups after the id ``after``, in order of ids."""
        ...

    async def known_group(self, request: RequestKey) -> Group | None:
        """Returns the current group if an update is a repetition; None otherwise.

        Raises:
            NotFoundError: GROUP_NOT_FOUND; it was deleted after the update.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def check(self, command: UpdateGroup) -> tuple[ManagerConfig, tuple[str, ...]]:
        """Returns the manager and the members that a group will have after an update.

        Raises:
            InvalidArgumentError: INVALID_FIELD: no members, or members that its kind cannot have.
            NotFoundError: GROUP_NOT_FOUND, AGENT_NOT_FOUND.
        """
        ...

    async def update(self, command: UpdateGroup, revision: int) -> Group:
        """Changes a group that is at a revision.

        Raises:
            InvalidArgumentError: INVALID_FIELD, as `check`.
            NotFoundError: GROUP_NOT_FOUND, AGENT_NOT_FOUND.
            AbortedError: REVISION_MISMATCH.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def delete(self, group_id: str) -> None:
        """Deletes a group, in any state.

        Raises:
            NotFoundError: GROUP_NOT_FOUND.
        """
        ...

    async def begin_run(self, group_id: str, run_id: str) -> str:
        """Records that a run of a swarm begins; returns the agent that holds the conversation.

        Repeating it for the same run returns the same agent, even after a hand-over, until another
        run begins.

        Returns:
            Id of the agent; empty if no run has handed the conversation over.

        Raises:
            NotFoundError: GROUP_NOT_FOUND.
        """
        ...

    async def hand_over(self, group_id: str, run_id: str, number: int, agent_id: str) -> None:
        """Stores that a run has handed the conversation over to an agent.

        Nothing changes if another run has begun since, or if a hand-over with this or a higher
        number is stored.

        Raises:
            NotFoundError: GROUP_NOT_FOUND.
        """
        ...
