"""The backlogs of the archival service's indexes: passages and chunks of files."""

from __future__ import annotations

import contextlib

from strata.archival.domain.chunks import QueuedSet, SetState
from strata.archival.search.index import ChunkIndex, PassageIndex
from strata.archival.store import ChunkQueue, PendingPassages
from strata.protocol.errors import StrataError
from strata.shared.search.indexing.indexer import CollectionCheck
from strata.shared.telemetry import Telemetry

# Files that are removed from the index before another backlog has its turn.
_MOST_REMOVED = 50


class PassageBacklog:
    """Passages to index.

    Replicas do not coordinate: a passage of which a replica wrote an older revision waits again.

    Args:
        pending: Reads the passages that wait.
        index: The index.
        batch: Passages per step.
        telemetry: Gets the lag as metrics.
    """

    def __init__(
        self,
        pending: PendingPassages,
        index: PassageIndex,
        *,
        batch: int,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._pending = pending
        self._index = index
        self._batch = batch
        self._check = CollectionCheck(index, pending, "passages", telemetry)

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        await self._check.ensure()

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        batch = await self._pending.find(self._batch)
        for project_id, ids in batch.ids.items():
            passages = await self._pending.load(project_id, ids)
            await self._index.write(project_id, passages)
            # Remove passages that were destroyed while they were embedded.
            if deleted_ids := await self._pending.done(project_id, passages):
                await self._index.remove(project_id, deleted_ids)
        return batch.has_more


class TombstoneBacklog:
    """Tombstones of passages to remove from the index for the last time.

    Args:
        pending: Queues them, for `PassageBacklog`.
        batch: Tombstones per step.
    """

    def __init__(self, pending: PendingPassages, *, batch: int) -> None:
        self._pending = pending
        self._batch = batch

    async def ensure(self) -> None:
        """Does nothing: `PassageBacklog` creates the collection."""

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        return bool(await self._pending.queue_settled(self._batch))


class ChunkBacklog:
    """Chunks of files to index or to remove, a part of one file per step.

    Files can be long: after each part the file goes to the end of the queue. Several files are
    removed per step, since that takes less time than embedding a part of one.

    Args:
        queue: The queue of files.
        index: The index.
        batch: Chunks per step.
        telemetry: Gets the lag as metrics.
    """

    def __init__(
        self,
        queue: ChunkQueue,
        index: ChunkIndex,
        *,
        batch: int,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._queue = queue
        self._index = index
        self._batch = batch
        self._check = CollectionCheck(index, queue, "file-chunks", telemetry)

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        await self._check.ensure()

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        for _ in range(_MOST_REMOVED):
            async with self._queue.claim() as queued:
                if queued is None:
                    return False
                try:
                    await self._advance(queued)
                except StrataError:
                    with contextlib.suppress(StrataError):
                        await self._queue.put_back(queued)
                    raise
            if queued.state is SetState.SERVING:
                break
        return True

    async def _advance(self, queued: QueuedSet) -> None:
        if queued.state is SetState.STAGED:
            await self._queue.abandon(queued)
        if queued.state is not SetState.SERVING:
            await self._index.remove_set(queued.project_id, queued.id)
            await self._queue.delete_dropped(queued)
        elif (batch := await self._queue.next(queued, self._batch)) is not None:
            await self._index.write(queued.project_id, batch)
            if not await self._queue.indexed(queued, batch):
                # PostgreSQL ends the claim of a process that was suspended. Another replica may
                # have removed the set from the index before these chunks were written.
                await self._index.remove_set(queued.project_id, queued.id)
