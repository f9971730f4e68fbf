"""The threads of a local embedding model."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from strata.shared.background_priority import lower_priority
from strata.shared.processors import usable_cores
from strata.shared.search.embedding.base import Kind

# More would take memory for more texts at once, and the caches of the services beside them.
_MOST_DOCUMENT_THREADS = 4
# After longer texts, memory that is not needed is returned to the system a moment later.
_HEAVY_CHARS = 300
_GIVE_BACK_AFTER_S = 1.0
# So is memory that short texts used, when no text was embedded for this long. The next query then
# takes 0.4 ms more.
_IDLE_S = 10.0
# The cores are in use by other work if the runs of about a second waited for a processor for this
# share of their time. An import with its work in the database and the index stays below 0.17;
# beside turns it reaches 0.3.
_CONTENDED = 0.2
_MOMENTS_S = 1.0
# Then documents leave the other cores for this long; twice as long, up to the limit, each time that
# the cores are in use again soon after.
_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 40.0
_Result = TypeVar("_Result")


class SpareCores:
    """Observes whether other work needs the cores that additional documents would use.

    The other work can be in other processes, such as the database. Runs of a model then take longer
    than the processor time that they use.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._waiting_share = 0.0
        self._pause = _PAUSE_S
        self._pause_end = float("-inf")

    @property
    def wanted(self) -> bool:
        """Whether other work needs these cores."""
        return self._now() < self._pause_end

    def note(self, seconds: float, processor_seconds: float) -> None:
        """Records a run of the model.

        Args:
            seconds: Its duration.
            processor_seconds: The processor time of its thread.
        """
        # Threads record without a lock: a record that is lost to another one changes little.
        waited = max(0.0, seconds - processor_seconds)
        # A moving average over time: a longer run counts more.
        weight = min(1.0, seconds / _MOMENTS_S)
        share = waited / seconds if seconds else 0.0
        self._waiting_share += weight * (share - self._waiting_share)
        if self._waiting_share >= _CONTENDED and not self.wanted:
            self._begin_pause()

    def _begin_pause(self) -> None:
        now = self._now()
        used_soon_after = now < self._pause_end + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S) if used_soon_after else _PAUSE_S
        self._pause_end = now + self._pause
        self._waiting_share = 0.0


class ModelThreads:
    """Runs a model: queries in one thread, documents in others of lower priority.

    ONNX Runtime releases the GIL meanwhile. Documents use all cores that nothing else needs: the
    system's scheduler prefers the other threads, and other processes. The caller should embed one
    document at a time while `cores_wanted`. Without priorities of threads (on other systems than
    Linux), one thread embeds the documents.

    Attributes:
        documents_at_once: Documents that can be embedded concurrently.
    """

    def __init__(self) -> None:
        self._spare_cores = SpareCores()
        self.documents_at_once = (
            min(usable_cores(), _MOST_DOCUMENT_THREADS) if sys.platform == "linux" else 1
        )
        self._queries = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedding")
        self._documents = ThreadPoolExecutor(
            max_workers=self.documents_at_once,
            thread_name_prefix="embedding-documents",
            initializer=lower_priority if sys.platform == "linux" else None,
        )
        self._giving_back: asyncio.TimerHandle | None = None
        self._waiting_for_idle: asyncio.TimerHandle | None = None
        self._last_use = 0.0

    def cores_wanted(self) -> bool:
        """Returns whether other work needs the cores of all documents but one."""
        return self._spare_cores.wanted

    def run(self, function: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Starts a function in the thread of the queries; returns its future."""
        return asyncio.get_running_loop().run_in_executor(self._queries, function)

    async def embed(
        self,
        texts: Sequence[str],
        kind: Kind,
        embed_one: Callable[[str], list[float]],
        release_memory: Callable[[], object],
    ) -> list[list[float]]:
        """Returns the vectors of texts.

        Args:
            texts: The texts.
            kind: The kind of the texts.
            embed_one: Returns the vector of a text; called in several threads. One text per run,
                so that a vector cannot depend on other texts of the batch; batches were not faster
                on one thread.
            release_memory: Returns memory to the system; called in a thread, some time after long
                texts, and when no text has been embedded for a while.
        """
        loop = asyncio.get_running_loop()
        executor = self._queries if kind == "query" else self._documents
        run = embed_one if kind == "query" else self._observed(embed_one)
        vectors = await asyncio.gather(
            *(loop.run_in_executor(executor, run, text) for text in texts)
        )
        if self._giving_back is None and sum(map(len, texts)) > _HEAVY_CHARS:
            self._giving_back = loop.call_later(_GIVE_BACK_AFTER_S, self._give_back, release_memory)
        self._last_use = loop.time()
        if self._waiting_for_idle is None:
            self._wait_for_idle(release_memory)
        return vectors

    async def close(self) -> None:
        """Ends the threads after they have processed earlier calls."""
        for timer in (self._giving_back, self._waiting_for_idle):
            if timer is not None:
                timer.cancel()
        for executor in (self._documents, self._queries):
            await asyncio.to_thread(executor.shutdown)

    def abandon(self) -> None:
        """Ends the threads after their calls, without waiting for that."""
        for executor in (self._documents, self._queries):
            executor.shutdown(wait=False)

    def _observed(self, embed_one: Callable[[str], list[float]]) -> Callable[[str], list[float]]:
        def run(text: str) -> list[float]:
            started, processor_started = time.perf_counter(), time.thread_time()
            vector = embed_one(text)
            processor_seconds = time.thread_time() - processor_started
            self._spare_cores.note(time.perf_counter() - started, processor_seconds)
            return vector

        return run

    def _give_back(self, release_memory: Callable[[], object]) -> None:
        self._giving_back = None
        self._release(release_memory)

    def _wait_for_idle(self, release_memory: Callable[[], object]) -> None:
        """Releases memory if no text was embedded for `_IDLE_S`; else it is called again then."""
        # One timer at a time: a timer for each text would cost more.
        loop = asyncio.get_running_loop()
        remaining = self._last_use + _IDLE_S - loop.time()
        if remaining > 0:
            self._waiting_for_idle = loop.call_later(remaining, self._wait_for_idle, release_memory)
        else:
            self._waiting_for_idle = None
            self._release(release_memory)

    def _release(self, release_memory: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # it is being closed
            self._queries.submit(release_memory)
