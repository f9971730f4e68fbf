"""Groups of agents. Pure: no transport, no database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from strata.agent_loop.domain.store import Request

MAX_MEMBERS = 32
MAX_SHARED_BLOCKS = 64
MAX_TURNS = 100
DEFAULT_TERMINATION_TOKEN = "DONE!"  # noqa: S105 - the word that ends a run
DEFAULT_FREQUENCY = 5


class ManagerType(StrEnum):
    """How a group decides who speaks; the names of the wire."""

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
"""Kinds with a managing agent."""
IN_TURNS = frozenset({ManagerType.ROUND_ROBIN, ManagerType.DYNAMIC, ManagerType.SWARM})
"""Kinds whose members speak a bounded number of times."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """How a group decides who speaks; fields that its kind does not have are 0 or empty.

    Attributes:
        max_turns: Most turns of members in one run; 0 means one for each member.
        termination_token: Text that ends a run.
        sleeptime_agent_frequency: Runs of the manager between background runs.
        max_message_buffer_length: Messages of the buffer from which on it is summarised.
        min_message_buffer_length: Messages that are left in it then.
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
    """An agent of a group, with what others are shown of it."""

    agent_id: str
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as stored; agents that are being deleted are not in it."""

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


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Creates a group."""

    id: str
    description: str
    manager: ManagerConfig
    agent_ids: tuple[str, ...]
    shared_block_ids: tuple[str, ...]
    request: Request = field(default_factory=Request)


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Changes a group; None leaves a field as it is.

    Attributes:
        expected_revision: 0 for any.
    """

    group_id: str
    description: str | None = None
    manager: ManagerConfig | None = None
    agent_ids: tuple[str, ...] | None = None
    shared_block_ids: tuple[str, ...] | None = None
    expected_revision: int = 0
    request: Request = field(default_factory=Request)


class GroupStore(Protocol):
    """Groups of the calling project."""

    async def insert(self, command: CreateGroup) -> Group:
        """Notes that a group is being created; returns that of an earlier equal request.

        Raises:
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

    async def known(self, request: Request) -> Group | None:
        """Returns the group that an earlier equal update changed, as it is now.

        Raises:
            NotFoundError: GROUP_NOT_FOUND; it was deleted since.
            AlreadyExistsError: REQUEST_ID_REUSED.
        """
        ...

    async def update(self, command: UpdateGroup, revision: int) -> Group:
        """Changes a group that is at a revision.

        Raises:
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
