"""Keeps the index up with PostgreSQL: commit first, index after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from strata.archival.domain.chunks import QueuedSet, SetState
from strata.archival.index import ChunkIndex, PassageIndex
from strata.archival.store import ChunkQueue, PendingPassages
from strata.shared.errors import StrataError
from strata.shared.logs import get_logger

_LONGEST_PAUSE_S = 30.0
# How often a quiet indexer looks whether the collections are still there.
_CHECK_EVERY_S = 15.0
_log = get_logger(__name__)


class Backlog(Protocol):
    """What waits for one collection of the index."""

    async def ensure(self) -> None:
        """Makes the collection if it is not there; then everything waits for it.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        ...

    async def advance(self) -> bool:
        """Indexes one batch; returns whether there was anything to do.

        Raises:
            UnavailableError: Database, engine or model cannot be reached; nothing is lost.
        """
        ...


class Indexer:
    """Writes what is pending into the index, for ever.

    It is woken right after a commit in this process, and looks by itself every
    ``poll`` seconds for what other replicas or a crash left behind.

    Args:
        backlogs: The work. One is advanced only when those before it have none.
        poll: Seconds.
    """

    def __init__(self, backlogs: Sequence[Backlog], *, poll: float) -> None:
        self._backlogs = backlogs
        self._poll = poll
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Tells that something was committed."""
        self._wake.set()

    async def run(self) -> None:
        """Indexes until cancelled."""
        pause = self._poll
        checked = -_CHECK_EVERY_S
        loop = asyncio.get_running_loop()
        while True:
            try:
                if loop.time() - checked > _CHECK_EVERY_S:
                    for backlog in self._backlogs:
                        await backlog.ensure()
                    checked = loop.time()
                worked = await self.index_pending()
                pause = self._poll
                if worked:
                    continue
            except StrataError as error:
                _log.warning(
                    "indexing waits", reason=error.reason.value, message=error.message, pause=pause
                )
                checked = -_CHECK_EVERY_S
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    async def index_pending(self) -> bool:
        """Indexes one batch of the first backlog that has one; returns whether one had.

        Raises:
            UnavailableError: Database, engine or model cannot be reached; nothing is lost.
        """
        for backlog in self._backlogs:
            if await backlog.advance():
                return True
        return False


class PassageBacklog:
    """Passages to index; writing twice does no harm, so replicas need not agree who does it.

    Args:
        pending: The passages.
        index: Where they go.
        batch: How many at a time.
    """

    def __init__(self, pending: PendingPassages, index: PassageIndex, *, batch: int) -> None:
        self._pending = pending
        self._index = index
        self._batch = batch

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        # First what waits, then the collection: an empty one must not stand for a full one.
        if await self._index.is_missing():
            count = await self._pending.index_all_again()
            _log.info("the index is built anew", passages=count)
        await self._index.ensure()

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
    """

    def __init__(self, queue: ChunkQueue, index: ChunkIndex, *, batch: int) -> None:
        self._queue = queue
        self._index = index
        self._batch = batch

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        if await self._index.is_missing():
            count = await self._queue.index_all_again()
            _log.info("the index of files is built anew", files=count)
        await self._index.ensure()

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
