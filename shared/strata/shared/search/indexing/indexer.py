"""Brings the vector index up to date with PostgreSQL, after the commit of each change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.protocol.errors import StrataError
from strata.shared.foreground_work import ForegroundWork
from strata.shared.logs import get_logger
from strata.shared.metric_names import INDEX_LAG_SECONDS, INDEX_WAITING
from strata.shared.polling import IdlePause
from strata.shared.telemetry import Telemetry

_LONGEST_PAUSE_S = 30.0
_log = get_logger(__name__)

MOST_COUNTED = 100_000
"""Limit of counting the texts that are not indexed yet."""


@dataclass(frozen=True, slots=True)
class IndexLag:
    """The backlog of the index: number of texts, and seconds since the oldest was stored."""

    waiting: int = 0
    seconds: float = 0.0


class LagGauges:
    """Gauges of the backlog of a collection's index.

    Args:
        telemetry: Registry of the gauges; None for none.
        collection: The collection.
    """

    def __init__(self, telemetry: Telemetry | None, collection: str) -> None:
        registry = telemetry or Telemetry()
        self._waiting = registry.gauge(INDEX_WAITING, collection=collection)
        self._seconds = registry.gauge(INDEX_LAG_SECONDS, collection=collection)

    def set(self, lag: IndexLag) -> None:
        """Sets the gauges."""
        self._waiting.set(lag.waiting)
        self._seconds.set(lag.seconds)


class CollectionIndex(Protocol):
    """The index of a collection."""

    async def is_missing(self) -> bool:
        """See `TextIndex.is_missing`."""
        ...

    async def is_empty(self) -> bool:
        """See `TextIndex.is_empty`."""
        ...

    async def ensure(self) -> None:
        """See `TextIndex.ensure`."""
        ...


class PendingTexts(Protocol):
    """The texts of a collection that are not indexed yet."""

    async def index_all_again(self) -> int:
        """Marks all texts as not indexed; returns their number."""
        ...

    async def lag(self) -> IndexLag:
        """Returns the backlog."""
        ...


class CollectionCheck:
    """Creates the index of a collection when it is missing, and measures its backlog.

    The first check of a process also notices an index without any document: after the database was
    restored beside an engine that has empty collections, all texts count as indexed. Later checks
    do not look, because an index may be empty although texts are indexed: some have no words.

    Args:
        index: The index.
        pending: The texts that are not indexed yet.
        collection: Name of the collection in metrics and logs.
        telemetry: Registry of the gauges; None for none.
    """

    def __init__(
        self,
        index: CollectionIndex,
        pending: PendingTexts,
        collection: str,
        telemetry: Telemetry | None,
    ) -> None:
        self._index = index
        self._pending = pending
        self._collection = collection
        self._gauges = LagGauges(telemetry, collection)
        self._was_checked = False

    async def ensure(self) -> None:
        """See `Backlog.ensure`."""
        try:
            await self._ensure_index()
        except StrataError:
            # Texts wait for an engine that cannot be reached, too.
            self._gauges.set(await self._pending.lag())
            raise
        self._gauges.set(await self._pending.lag())

    async def _ensure_index(self) -> None:
        # Marks texts as pending before the collection exists: an empty one must not count
        # as complete.
        is_missing = await self._index.is_missing()
        if is_missing or (not self._was_checked and await self._index.is_empty()):
            count = await self._pending.index_all_again()
            if is_missing or count:
                _log.info(
                    "the index is missing or empty and is rebuilt",
                    collection=self._collection,
                    texts=count,
                )
        self._was_checked = True
        await self._index.ensure()


class Backlog(Protocol):
    """The texts that wait to be written to one collection of the index."""

    async def ensure(self) -> None:
        """Creates the collection if it does not exist, and marks all texts as waiting for it.

        Raises:
            UnavailableError: Database or engine cannot be reached.
        """
        ...

    async def advance(self) -> bool:
        """Indexes one batch; returns whether more may wait than this batch took.

        Raises:
            UnavailableError: Database, engine or model cannot be reached; the batch stays waiting.
        """
        ...


class Indexer:
    """Writes pending texts to the index until it is cancelled.

    A commit in this process wakes it. In addition it polls for texts that other replicas or a
    crash left pending. It processes one batch at a time. Texts that arrive faster than they can
    be embedded wait in PostgreSQL, where searches find them by their words.

    Args:
        backlogs: The backlogs, which are processed in turn.
        poll: Seconds between two polls.
        polled: Backlogs that are processed at polls only, not after each commit, because rows wait
            in them rarely.
        rarely_when_idle: Poll less often while no texts wait, see `IdlePause`.
        find_work: Returns whether any backlog may have texts. It is called at a poll, so that one
            query takes the place of one for each backlog; None looks at each.
        check_interval_s: Seconds between checks that the collections still exist.
        foreground: Each batch waits for this work, for a moment; None for no waiting.
    """

    def __init__(
        self,
        backlogs: Sequence[Backlog],
        *,
        poll: float,
        polled: Sequence[Backlog] = (),
        rarely_when_idle: bool = False,
        find_work: Callable[[], Awaitable[object]] | None = None,
        check_interval_s: float = 30.0,
        foreground: ForegroundWork | None = None,
    ) -> None:
        self._backlogs = backlogs
        self._polled = polled
        self._poll = poll
        self._rarely_when_idle = rarely_when_idle
        self._find_work = find_work
        self._check_interval_s = check_interval_s
        self._foreground = foreground or ForegroundWork()
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def wake(self) -> None:
        """Wakes the indexer after a commit."""
        self._wake.set()

    async def run(self) -> None:
        """Indexes until cancelled."""
        pause = self._poll
        idle_pause = IdlePause(self._poll)
        checked = -self._check_interval_s
        polled = -self._poll
        is_poll = False
        loop = asyncio.get_running_loop()
        while True:
            try:
                if loop.time() - checked > self._check_interval_s:
                    await self._ensure()
                    checked = loop.time()
                has_more = False
                if not is_poll or self._find_work is None or await self._find_work():
                    has_more = await self._advance(self._backlogs)
                    if loop.time() - polled >= self._poll:
                        polled = loop.time()
                        has_more |= await self._advance(self._polled)
                is_poll = False
                pause = self._poll
                idle_pause.note(worked=has_more or not self._rarely_when_idle)
                if has_more:
                    continue
            except StrataError as error:
                _log.warning(
                    "indexing waits",
                    reason=error.reason.value,
                    message=error.message,
                    detail=error.detail,
                    pause=pause,
                )
                checked = -self._check_interval_s
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                continue
            await idle_pause.wait(self._wake)
            is_poll = not self._wake.is_set()
            self._wake.clear()

    async def _ensure(self) -> None:
        """Checks every backlog, also after one that fails, because each measures its own lag.

        Raises:
            StrataError: The error of the first backlog that failed.
        """
        errors: list[StrataError] = []
        for backlog in (*self._backlogs, *self._polled):
            try:
                await backlog.ensure()
            except StrataError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def index_pending(self) -> bool:
        """Indexes one batch of every backlog; returns whether more may wait.

        Raises:
            UnavailableError: Database, engine or model cannot be reached; the batch stays waiting.
        """
        return await self._advance((*self._backlogs, *self._polled))

    async def _advance(self, backlogs: Sequence[Backlog]) -> bool:
        has_more = False
        for backlog in backlogs:
            await self._foreground.give_way()
            if await backlog.advance():
                self._quiet.clear()
                has_more = True
        if not has_more:
            self._quiet.set()
        return has_more

    async def quiet(self, seconds: float) -> None:
        """Waits until no more than one batch is pending, for some seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
