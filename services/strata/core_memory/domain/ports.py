"""The interface of the store that the rules of core memory use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from strata.core_memory.domain.blocks import Authorship, Block, EditSelection, Version
from strata.core_memory.domain.prompt.compilation import AgentMemory, MemoryReader
from strata.core_memory.domain.prompt.limits import NO_LIMIT, PromptLimit, PromptSize
from strata.shared.idempotency.keys import RequestKey

ResultT = TypeVar("ResultT")


class ReplayedError(Exception):
    """The request was done before; `response` is its stored response."""

    def __init__(self, response: bytes) -> None:
        super().__init__("the request was answered before")
        self.response = response


@dataclass(frozen=True, slots=True)
class LabelledBlock:
    """The agent's block of a label, None if there is none, and all its labels in order."""

    block: Block | None
    labels: tuple[str, ...]


class Unit(Protocol):
    """One transaction (unit of work). Every method is one statement unless noted.

    A write that makes the memory of an agent larger than its `PromptLimit` raises
    `FailedPreconditionError` (``CONTEXT_WINDOW_EXCEEDED``). Space that the transaction has
    freed before is available.

    The first call MUST be `check_request` or one of the locking reads, which include that
    check. The last one MUST be `finish`, unless a write took the response.
    """

    async def check_request(self) -> None:
        """Raises `ReplayedError` if the request was done before.

        Raises:
            AlreadyExistsError: Its id was used for something else (``REQUEST_ID_REUSED``).
        """
        ...

    async def lock_block(self, block_id: str) -> Block | None:
        """Returns the newest state of a block and locks it until the transaction ends.

        Returns None for a deleted block.
        """
        ...

    async def lock_blocks(self, block_ids: Sequence[str]) -> dict[str, Block]:
        """Locks several blocks as `lock_block` does, including deleted ones; returns them by id.

        MUST lock in order of id, to exclude deadlocks.
        """
        ...

    async def lock_labelled(self, agent_id: str, label: str) -> LabelledBlock:
        """Locks the agent's block of a label as `lock_block` does."""
        ...

    async def lock_all(
        self, agent_id: str, labels: Sequence[str]
    ) -> tuple[dict[str, Block], tuple[str, ...]]:
        """Locks the agent's blocks of some labels as `lock_block` does; returns them by label.

        MUST lock in order of id, to exclude deadlocks.

        Returns:
            The existing blocks, and all labels of the agent in order.
        """
        ...

    async def value_at(self, block_id: str, revision: int) -> str | None:
        """Returns the text of a block at a revision; None if there is none."""
        ...

    async def versions_at(self, block_id: str, revisions: Sequence[int]) -> Mapping[int, Version]:
        """Returns the existing ones of some versions of a block, by revision."""
        ...

    async def edits(self, selection: EditSelection) -> Mapping[str, Sequence[int]]:
        """Returns the revisions that match, newest first, by block."""
        ...

    async def reverts(self, block_ids: Sequence[str]) -> Mapping[str, Mapping[int, str]]:
        """Returns, by block and revision, what each revert undid (`Authorship.undoes`)."""
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
            authorship: Its author.
            agent_id: Attach it to this agent; empty for none.
            made_for: The agent with which it is deleted; empty for none.
            response: The response to the request, for repetitions.

        Raises:
            AlreadyExistsError: The agent has that label (``NAME_TAKEN``).
        """
        ...

    async def update(self, block: Block, authorship: Authorship, *, response: bytes) -> None:
        """Updates one block as `update_all` does."""
        ...

    async def update_all(
        self, changes: Sequence[tuple[Block, Authorship]], *, response: bytes
    ) -> None:
        """Stores changed blocks, their versions, and the response.

        A block with a `delete_time` is detached from every agent. A block without one is
        restored if it was deleted, and is no longer deleted with the agent that it was made
        for.

        Raises:
            AlreadyExistsError: An agent has such a label (``NAME_TAKEN``).
        """
        ...

    async def check_update_all(self, changes: Sequence[tuple[Block, Authorship]]) -> None:
        """Raises the errors of `update_all`, and stores nothing."""
        ...

    async def purge(self, block_id: str) -> bool:
        """Destroys a block with its history and attachments; False if there is none."""
        ...

    async def attach(self, agent_id: str, labels: Mapping[str, str], time: datetime) -> None:
        """Attaches blocks to an agent, in order, after those that are attached already.

        Args:
            agent_id: The agent.
            labels: The blocks' labels by their ids.
            time: When.

        Raises:
            AlreadyExistsError: It has another block of such a label (``NAME_TAKEN``).
        """
        ...

    async def detach(self, agent_id: str, block_id: str, time: datetime) -> bool:
        """Detaches a block from an agent and records that; False if it was not attached."""
        ...

    async def knows_agent(self, agent_id: str) -> bool:
        """Returns whether there is such an agent."""
        ...

    async def begin_agent(
        self, agent_id: str, limit: PromptLimit = NO_LIMIT, revision: int = 0
    ) -> bool:
        """Records that the agent's first blocks are made; False if they were made before.

        Args:
            agent_id: The agent.
            limit: How large its memory may become.
            revision: The revision of the agent that the limit is for.
        """
        ...

    async def follow(self, agent_id: str, followed_id: str, time: datetime) -> bool:
        """Makes an agent share the blocks of another, present and future.

        A block whose label the agent has already is not shared.

        Returns:
            False if there is no such other agent.
        """
        ...

    async def lock_prompt(self, agent_id: str) -> PromptLimit | None:
        """Returns how large the memory of an agent may become; None if there is no such agent.

        No other transaction can make the memory larger until this one ends.
        """
        ...

    async def prompt_size(self, agent_id: str) -> PromptSize:
        """Returns how large the memory of an agent is in its prompt."""
        ...

    async def raise_prompt(self, agent_id: str, limit: PromptLimit) -> None:
        """Raises the limit of an agent to the bytes of another, for the rendering that it has."""
        ...

    async def set_prompt(self, agent_id: str, limit: PromptLimit, revision: int) -> None:
        """Sets the limit of an agent, unless a later revision of the agent has set one."""
        ...

    async def insert_all(
        self, blocks: Sequence[Block], authorship: Authorship, *, made_for: str
    ) -> None:
        """Stores new blocks with their first versions, not attached."""
        ...

    async def labels(self, block_ids: Sequence[str]) -> Mapping[str, str]:
        """Returns the labels, by id, of those ids that are blocks of the project.

        Locks them: none can be deleted before the transaction ends.
        """
        ...

    async def attached(self, agent_id: str) -> list[Block]:
        """Returns all blocks of an agent in order of attachment."""
        ...

    async def detach_all(self, agent_id: str, time: datetime) -> frozenset[str]:
        """Deletes an agent's record, detaches its blocks, and locks them and those made for it.

        Two statements.

        Returns:
            The ids of the blocks that were attached.
        """
        ...

    async def made_for(self, agent_id: str) -> list[Block]:
        """Returns the blocks made for an agent that are attached to none; after `detach_all`."""
        ...

    async def finish(self, response: bytes) -> None:
        """Stores the response of a mutation, if no write took it."""
        ...


class BlockStore(MemoryReader, Protocol):
    """Blocks, attachments and versions of the calling project."""

    async def mutate(
        self, request: RequestKey, work: Callable[[Unit], Awaitable[ResultT]]
    ) -> ResultT:
        """Runs `work` in one transaction; again if another one took the request id meanwhile.

        Raises:
            ReplayedError: The request was done before.
        """
        ...

    async def agent_memory(self, agent_id: str, known_fingerprint: str) -> AgentMemory:
        """Returns the agent's blocks, as `MemorySnapshot.agent_memory` does."""
        ...

    async def block(self, block_id: str) -> Block | None:
        """Returns a block, deleted or not."""
        ...

    async def knows_agent(self, agent_id: str) -> bool:
        """Returns whether there is such an agent."""
        ...

    async def labelled(self, agent_id: str, label: str) -> LabelledBlock:
        """Returns the agent's block of a label."""
        ...

    async def last_labelled(self, agent_id: str, label: str) -> Block | None:
        """Returns the block that the agent had last under a label, deleted or not."""
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
            time: The time of the returned state; None for now.
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
        """Returns the values of those revisions that exist."""
        ...
