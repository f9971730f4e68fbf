"""The thread that runs the engine, so that the event loop stays responsive between calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from strata.standalone.vectors.errors import VectorsError, from_engine
from strata.standalone.vectors.store import CollectionStore

# A search that waited for a flush is answered before the next one.
_BETWEEN_FLUSHES_S = 0.1
_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


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

        Use it for work of some milliseconds. It blocks the event loop, as the engine's hold of the
        global lock would do anyway.

        Raises:
            VectorsError: Whatever the engine raised.
        """
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
        """Flushes periodically until cancelled. A failure is logged, and flushing continues.

        A flush takes a tenth of a second or more, and no search is answered meanwhile. So
        collections are flushed one at a time, with the searches that wait in between.
        """
        while True:
            await asyncio.sleep(seconds)
            names, _ = await self.run(CollectionStore.unflushed)
            for name in names:
                await self._flush(name)
                await asyncio.sleep(_BETWEEN_FLUSHES_S)

    async def _flush(self, name: str) -> None:
        try:
            await self.run(lambda store: store.flush(name))
        except VectorsError as error:
            _log.error("flush_failed", error=str(error))

    async def close(self) -> None:
        """Flushes and closes the collections, and ends the thread."""
        if self._store is not None:
            await self.run(CollectionStore.close)
        self._executor.shutdown()
