"""What the rules of core memory need of a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from strata.core_memory.domain.blocks import Authorship, Block, Version
from strata.core_memory.domain.compilation import AgentMemory, MemoryReader
from strata.core_memory.domain.prompt_limits import NO_LIMIT, PromptLimit, PromptSize
from strata.core_memory.domain.selection import Selection

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Request:
    """A mutation's claim to be done once.

    Attributes:
        id: The caller's request id; empty if a repetition may be done again.
        digest: Hash of the method and everything it was asked.
    """

    id: str
    digest: bytes


class ReplayedError(Exception):
    """The request was done before; `response` is what was answered then."""

    def __init__(self, response: bytes) -> None:
        super().__init__("the request was answered before")
        self.response = response


@dataclass(frozen=True, slots=True)
class Found:
    """A block that was looked up by label and locked, and its agent's labels in order."""

    block: Block | None
    labels: tuple[str, ...]


class Unit(Protocol):
    """One transaction. Every method is one statement unless it says otherwise.

    Whatever makes the memory of an agent larger than its `PromptLimit` raises
    `FailedPreconditionError` (``CONTEXT_WINDOW_EXCEEDED``); what the transaction made smaller
    before counts.

    The first call MUST be `check_request` or one of the locking reads, which do the
    same on the way; the last one `finish`, unless the write took the response itself.
    """

    async def check_request(self) -> None:
        """Raises `ReplayedError` if the request was done before.

        Raises:
            AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        """
        ...

    async def lock_block(self, block_id: str) -> Block | None:
        """Returns the newest state of a block and keeps others from changing it.

        A deleted block is none.
        """
        ...

    async def lock_blocks(self, block_ids: Sequence[str]) -> dict[str, Block]:
        """Returns what `lock_block` does for several by id, deleted ones too.

        MUST lock in order of id, so that no two wait for each other.
        """
        ...

    async def lock_labelled(self, agent_id: str, label: str) -> Found:
        """Returns what `lock_block` does for the agent's block of that label."""
        ...

    async def lock_all(
        self, agent_id: str, labels: Sequence[str]
    ) -> tuple[dict[str, Block], tuple[str, ...]]:
        """Returns what `lock_block` does for the agent's blocks of those labels, by label.

        MUST lock in order of id, so that no two wait for each other.

        Returns:
            The blocks that there are, and all labels of the agent in order.
        """
        ...

    async def value_at(self, block_id: str, revision: int) -> str | None:
        """Returns the text of a block at a revision; None if there is none."""
        ...

    async def versions_at(self, block_id: str, revisions: Sequence[int]) -> Mapping[int, Version]:
        """Returns those versions of a block that there are, by revision."""
        ...

    async def edits(self, selection: Selection) -> Mapping[str, Sequence[int]]:
        """Returns the revisions that match, newest first, by block."""
        ...

    async def reverts(self, block_ids: Sequence[str]) -> Mapping[str, Mapping[int, str]]:
        """Returns what the reverts of some blocks undid (`Authorship.undoes`), by revision."""
        ...

    async def insert(
        self,
        block: Block,
        authorship: Authorship,
        *,
        agent_id: str,
        made_for: str,
        response: bytes,
    ) -> None:
        """Stores a new block, its first version, and the response.

        Args:
            block: The block, at revision 1.
            authorship: Who makes it.
            agent_id: Attach it to this agent; empty for none.
            made_for: The agent with which it ends, see `release`; empty for none.
            response: What the request is answered.

        Raises:
            AlreadyExistsError: The agent has that label (``NAME_TAKEN``).
        """
        ...

    async def update(self, block: Block, authorship: Authorship, *, response: bytes) -> None:
        """Does what `update_all` does for one block."""
        ...

    async def update_all(
        self, changes: Sequence[tuple[Block, Authorship]], *, response: bytes
    ) -> None:
        """Stores changed blocks, their versions, and the response.

        A block with a time of deletion is taken from every agent; one without it is
        there again, and no longer ends with the agent that it was made for.

        Raises:
            AlreadyExistsError: An agent has such a label (``NAME_TAKEN``).
        """
        ...

    async def purge(self, block_id: str) -> bool:
        """Destroys a block with its history and attachments; says whether there was one."""
        ...

    async def attach(self, agent_id: str, labels: Mapping[str, str], time: datetime) -> None:
        """Shows blocks to an agent, in order, after those that it has; those that it has stay.

        Args:
            agent_id: The agent.
            labels: The blocks' labels by their ids.
            time: When.

        Raises:
            AlreadyExistsError: It has another block of such a label (``NAME_TAKEN``).
        """
        ...

    async def detach(self, agent_id: str, block_id: str, time: datetime) -> bool:
        """Hides a block from an agent and remembers that; says whether it had it."""
        ...

    async def knows_agent(self, agent_id: str) -> bool:
        """Says whether there is such an agent."""
        ...

    async def begin_agent(
        self, agent_id: str, limit: PromptLimit = NO_LIMIT, revision: int = 0
    ) -> bool:
        """Notes that the agent's first blocks are made; False if they were before.

        Args:
            agent_id: The agent.
            limit: How large its memory may become.
            revision: Of the agent for which the limit is.
        """
        ...

    async def follow(self, agent_id: str, followed_id: str, time: datetime) -> bool:
        """Lets an agent share the blocks of another, present and future.

        A block whose label it has already is not shared.

        Returns:
            False if there is no such other agent.
        """
        ...

    async def lock_prompt(self, agent_id: str) -> PromptLimit | None:
        """Returns how large the memory of an agent may become; None if there is no such agent.

        Until the transaction ends nobody makes it larger.
        """
        ...

    async def prompt_size(self, agent_id: str) -> PromptSize:
        """Returns how large the memory of an agent is in its prompt."""
        ...

    async def raise_prompt(self, agent_id: str, limit: PromptLimit) -> None:
        """Lets the memory of an agent become as large as a limit says, in the form it has."""
        ...

    async def set_prompt(self, agent_id: str, limit: PromptLimit, revision: int) -> None:
        """Sets the limit of an agent, unless one of a later revision of the agent is set."""
        ...

    async def insert_all(
        self, blocks: Sequence[Block], authorship: Authorship, *, made_for: str
    ) -> None:
        """Stores new blocks with their first versions, not attached."""
        ...

    async def labels(self, block_ids: Sequence[str]) -> Mapping[str, str]:
        """Returns the labels, by id, of those ids that are blocks of the project.

        None of them is deleted before the transaction ends.
        """
        ...

    async def attached(self, agent_id: str) -> list[Block]:
        """Returns all blocks of an agent in order of attachment."""
        ...

    async def detach_all(self, agent_id: str, time: datetime) -> frozenset[str]:
        """Forgets an agent, hides everything from it, and locks what it had or was made for it.

        Two statements.

        Returns:
            The ids of the blocks that it had.
        """
        ...

    async def made_for(self, agent_id: str) -> list[Block]:
        """Returns the blocks made for an agent that no agent has; after `detach_all`."""
        ...

    async def finish(self, response: bytes) -> None:
        """Stores the response of a mutation whose write did not."""
        ...


class BlockStore(MemoryReader, Protocol):
    """Blocks, attachments and versions of the calling project."""

    async def mutate(self, request: Request, work: Callable[[Unit], Awaitable[ResultT]]) -> ResultT:
        """Runs `work` in one transaction; once more if it lost a race for the request id.

        Raises:
            ReplayedError: The request was done before.
        """
        ...

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks; as `MemorySnapshot.agent_memory`."""
        ...

    async def block(self, block_id: str) -> Block | None:
        """Returns a block, deleted or not."""
        ...

    async def knows_agent(self, agent_id: str) -> bool:
        """Says whether there is such an agent."""
        ...

    async def labelled(self, agent_id: str, label: str) -> Found:
        """Returns the agent's block of a label."""
        ...

    async def block_as_of(self, block_id: str, time: datetime) -> Block | None:
        """Returns a block as it was; None if it was not there."""
        ...

    async def agent_blocks(
        self, agent_id: str, label: str, after: int, count: int, time: datetime | None = None
    ) -> list[tuple[int, Block]]:
        """Returns blocks of an agent with their positions, in order, after a position.

        Args:
            agent_id: The agent.
            label: Only blocks of this label; empty for all.
            after: Only later positions.
            count: At most this many.
            time: As they were then; None for now.
        """
        ...

    async def project_blocks(
        self, label: str, after: str, count: int, *, deleted: bool = False
    ) -> list[Block]:
        """Returns blocks of the project in order of id, after an id; deleted ones if asked to."""
        ...

    async def versions(self, block_id: str, before: int, count: int) -> list[Version]:
        """Returns versions of a block, newest first, before a revision."""
        ...

    async def values(self, block_id: str, revisions: Sequence[int]) -> Mapping[int, str]:
        """Returns the values of those revisions that there are."""
        ...
