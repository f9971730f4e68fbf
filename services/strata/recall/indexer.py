"""The backlogs of the index of messages: messages to index, and deleted agents to remove."""

from __future__ import annotations

from strata.recall.index import MessageIndex
from strata.recall.store import PendingMessages
from strata.shared.logs import get_logger
from strata.shared.search.indexing.indexer import LagGauges
from strata.shared.telemetry import Telemetry

_log = get_logger(__name__)


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
        self._gauges = LagGauges(telemetry, "messages")

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        # Marks messages as pending before the collection exists: an empty one must not count
        # as complete.
        if await self._index.is_missing():
            count = await self._pending.index_all_again()
            _log.info("the index of messages is missing and is rebuilt", messages=count)
        await self._index.ensure()
        self._gauges.set(await self._pending.lag())

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        batch = await self._pending.find(self._batch)
        for project_id, ids in batch.ids.items():
            messages = await self._pending.load(project_id, ids)
            await self._index.write(project_id, messages)
            # Remove messages that were deleted while they were embedded.
            if gone := await self._pending.done(project_id, ids):
                await self._index.remove(project_id, gone)
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
