"""The thread that runs the engine, so that the event loop stays responsive between calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from strata.shared.heap_trim import trim_heap
from strata.shared.logs import get_logger
from strata.shared.mapped_pages import release_pages_below
from strata.standalone.vectors.errors import VectorsError, from_engine
from strata.standalone.vectors.file_sync import sync_files
from strata.standalone.vectors.store import CollectionStore

# A search that waited for a flush is answered before the next one.
_BETWEEN_FLUSHES_S = 0.1
# A collection is flushed when no search has been made for this long,
_QUIET_S = 0.5
# and regardless of searches after this time, or after so many operations: the log that is repeated
# after a crash would become long.
_UNFLUSHED_S = 30.0
_UNFLUSHED_OPERATIONS = 1000
# Memory is released when there have been no searches and no changes for this long.
_IDLE_S = 10.0
_Result = TypeVar("_Result")
_log = get_logger(__name__)


class EngineWorker:
    """Runs functions on the store, one at a time and in order.

    The engine holds Python's global lock during a call, so more threads would not help. A call
    that is cancelled while it waits is not made. `run_now` avoids the switch to the thread and
    back if the thread is idle.
    """

    def __init__(self, folder: Path) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._folder = folder
        self._store: CollectionStore | None = None
        self._unfinished: set[Future[Any]] = set()
        self._last_search = float("-inf")
        # When collections were first seen with changes that are not flushed.
        self._unflushed_since: dict[str, float] = {}
        # When the engine was last used; None if memory was released since then.
        self._used_at: float | None = time.monotonic()

    async def open(self) -> None:
        """Loads every collection."""
        loop = asyncio.get_running_loop()
        self._store = await loop.run_in_executor(self._executor, CollectionStore, self._folder)

    async def run(self, work: Callable[[CollectionStore], _Result]) -> tuple[_Result, float]:
        """Returns what `work` returns, and the seconds that it took.

        Raises:
            VectorsError: Whatever the engine raised.
        """
        future = self._executor.submit(self._timed, work)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return await asyncio.wrap_future(future)

    async def run_now(self, work: Callable[[CollectionStore], _Result]) -> tuple[_Result, float]:
        """Like `run`, but in the thread of the event loop if the worker's thread is idle.

        Use it for searches, which take some milliseconds. It blocks the event loop, as the engine's
        hold of the global lock would do anyway.

        Raises:
            VectorsError: Whatever the engine raised.
        """
        self._last_search = self._used_at = time.monotonic()
        return await self.run(work) if self._unfinished else self._timed(work)

    def _timed(self, work: Callable[[CollectionStore], _Result]) -> tuple[_Result, float]:
        assert self._store is not None
        started = time.perf_counter()
        try:
            return work(self._store), time.perf_counter() - started
        except VectorsError:
            raise
        except BaseException as error:
            raise from_engine(error) from error

    async def flush_every(self, seconds: float) -> None:
        """Writes changes to disk periodically until cancelled; failures are logged.

        A flush waits for the disk some thirty times, for a tenth of a second or more, and holds
        the global lock: no search is answered meanwhile. So the files are first written without
        that lock, which makes the changes durable. The flush, which has little left to write then,
        follows when no searches are made, or after half a minute. Collections are flushed one at a
        time, with the searches that wait in between.
        """
        while True:
            await asyncio.sleep(seconds)
            unflushed, _ = await self.run(CollectionStore.unflushed)
            self._unflushed_since = {
                name: self._unflushed_since.get(name, time.monotonic()) for name in unflushed
            }
            for name, operations in unflushed.items():
                try:
                    await self._write(name, operations)
                except (VectorsError, OSError) as error:
                    _log.error("flush of the vector engine failed", error=str(error))
            await self._release_memory(in_use=bool(unflushed))

    async def _release_memory(self, *, in_use: bool) -> None:
        """Releases memory once the engine has not been used for a while.

        Mapped files count as memory of this process as far as they were read or written: 100 MB
        after an import of 10 MB of text. Their pages stay in the system's cache.

        Args:
            in_use: Whether there are recent changes.
        """
        if in_use:
            self._used_at = time.monotonic()
        elif self._used_at is not None and time.monotonic() - self._used_at >= _IDLE_S:
            self._used_at = None
            # In the engine's thread, because the engine unmaps files there: otherwise an address
            # could belong to other memory by now, whose content would be lost.
            await self.run(lambda _: release_pages_below(self._folder))
            await asyncio.to_thread(trim_heap)

    async def _write(self, name: str, operations: int) -> None:
        folder, _ = await self.run(lambda store: store.folder(name))
        await asyncio.to_thread(sync_files, folder)
        now = time.monotonic()
        if (
            now - self._last_search >= _QUIET_S
            or now - self._unflushed_since[name] >= _UNFLUSHED_S
            or operations >= _UNFLUSHED_OPERATIONS
        ):
            await self.run(lambda store: store.flush(name))
            del self._unflushed_since[name]
            await asyncio.sleep(_BETWEEN_FLUSHES_S)

    async def close(self) -> None:
        """Flushes and closes the collections, and ends the thread."""
        if self._store is not None:
            await self.run(CollectionStore.close)
        self._executor.shutdown()
