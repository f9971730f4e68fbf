"""What the index of messages has to do: add new messages, remove deleted messages and agents."""

from __future__ import annotations

from strata.recall.search.index import MessageIndex
from strata.recall.store import DeletedMessages, PendingMessages
from strata.shared.search.indexing.indexer import CollectionCheck
from strata.shared.telemetry import Telemetry

_DELETED_AT_ONCE = 500


class MessageBacklog:
    """Messages to index.

    Writes are idempotent, so replicas do not coordinate.

    Args:
        pending: Reads the messages that wait.
        index: The index.
        telemetry: Gets the lag as metrics.
        batch: Messages per step.
    """

    def __init__(
        self,
        pending: PendingMessages,
        index: MessageIndex,
        telemetry: Telemetry,
        *,
        batch: int,
    ) -> None:
        self._pending = pending
        self._index = index
        self._batch = batch
        self._check = CollectionCheck(index, pending, "messages", telemetry)

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        await self._check.ensure()

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        batch = await self._pending.find(self._batch)
        for project_id, ids in batch.ids.items():
            messages = await self._pending.load(project_id, ids)
            await self._index.write(project_id, messages)
            # Remove messages that were deleted while they were embedded.
            if deleted_ids := await self._pending.done(project_id, ids):
                await self._index.remove(project_id, deleted_ids)
        return batch.has_more


class DeletedAgentBacklog:
    """Deleted agents, to remove from the index; a `Backlog` of the indexer."""

    def __init__(self, pending: PendingMessages, index: MessageIndex) -> None:
        self._pending = pending
        self._index = index

    async def ensure(self) -> None:
        """Does nothing: `MessageBacklog` creates the collection."""

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        agents = await self._pending.deleted_agents()
        for agent in agents:
            await self._index.remove_agent(agent.project_id, agent.agent_id)
            await self._pending.removed(agent)
        return bool(agents)


class DeletedMessageBacklog:
    """Index entries of deleted messages, to remove; a `Backlog` of the indexer."""

    def __init__(self, deleted: DeletedMessages, index: MessageIndex) -> None:
        self._deleted = deleted
        self._index = index

    async def ensure(self) -> None:
        """Does nothing: `MessageBacklog` creates the collection."""

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        deleted = await self._deleted.find(_DELETED_AT_ONCE)
        for project_id, ids in deleted.items():
            await self._index.remove(project_id, ids)
            await self._deleted.done(project_id, ids)
        return bool(deleted)
