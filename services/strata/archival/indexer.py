"""What waits for the index in this service."""

from __future__ import annotations

import contextlib

from strata.archival.domain.chunks import QueuedSet, SetState
from strata.archival.index import ChunkIndex, PassageIndex
from strata.archival.store import ChunkQueue, PendingPassages
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger
from strata.shared.telemetry import Telemetry
from strata.shared.vectors.indexing import LagGauges

_log = get_logger(__name__)


class PassageBacklog:
    """Passages to index; writing twice does no harm, so replicas need not agree who does it.

    Args:
        pending: The passages.
        index: Where they go.
        batch: How many at a time.
        telemetry: Is told how much waits.
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
        self._gauges = LagGauges(telemetry, "passages")

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        # First what waits, then the collection: an empty one must not stand for a full one.
        if await self._index.is_missing():
            count = await self._pending.index_all_again()
            _log.info("the index is built anew", passages=count)
        await self._index.ensure()
        self._gauges.tell(await self._pending.lag())

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        found = await self._pending.find(self._batch)
        for project_id, ids in found.items():
            passages = await self._pending.load(project_id, ids)
            await self._index.write(project_id, passages)
            await self._pending.done(project_id, passages)
        return bool(found)


class ChunkBacklog:
    """Chunks of files to index or to forget, a part of one file at a time.

    A file can be long: replicas take turns at it, and it takes turns with the other files.

    Args:
        queue: The files.
        index: Where their chunks go.
        batch: How many chunks at a time.
        telemetry: Is told how much waits.
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
        self._gauges = LagGauges(telemetry, "file-chunks")

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        if await self._index.is_missing():
            count = await self._queue.index_all_again()
            _log.info("the index of files is built anew", files=count)
        await self._index.ensure()
        self._gauges.tell(await self._queue.lag())

    async def advance(self) -> bool:
        """See `Backlog.advance`."""
        async with self._queue.claim() as queued:
            if queued is None:
                return False
            try:
                await self._advance(queued)
            except StrataError:
                with contextlib.suppress(StrataError):
                    await self._queue.put_back(queued)
                raise
        return True

    async def _advance(self, queued: QueuedSet) -> None:
        if queued.state is SetState.STAGED:
            await self._queue.abandon(queued)
        if queued.state is not SetState.SERVING:
            await self._index.forget(queued.project_id, queued.id)
            await self._queue.forgotten(queued)
        elif (batch := await self._queue.next(queued, self._batch)) is not None:
            await self._index.write(queued.project_id, batch)
            await self._queue.indexed(queued, batch)
