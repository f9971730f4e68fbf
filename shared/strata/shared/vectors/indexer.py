"""Keeps the index up with PostgreSQL: commit first, index after."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.shared.errors import StrataError
from strata.shared.logs import get_logger
from strata.shared.telemetry import Telemetry

_LONGEST_PAUSE_S = 30.0
_log = get_logger(__name__)

WAITING = "strata_index_waiting"
"""Gauge by collection: texts that the index does not have yet, 100,000 at most."""
LAG_SECONDS = "strata_index_lag_seconds"
"""Gauge by collection: age of the oldest of them."""
MOST_COUNTED = 100_000
"""Counting what waits stops where more would say no more."""


@dataclass(frozen=True, slots=True)
class IndexLag:
    """How far the index is behind: texts, and seconds since the oldest of them was stored."""

    waiting: int = 0
    seconds: float = 0.0


class LagGauges:
    """Tells how far the index of a collection is behind.

    Args:
        telemetry: Where it is told; None keeps it to itself.
        collection: The collection.
    """

    def __init__(self, telemetry: Telemetry | None, collection: str) -> None:
        registry = telemetry or Telemetry()
        self._waiting = registry.gauge(WAITING, collection=collection)
        self._seconds = registry.gauge(LAG_SECONDS, collection=collection)

    def set(self, lag: IndexLag) -> None:
        """Replaces what was told before."""
        self._waiting.set(lag.waiting)
        self._seconds.set(lag.seconds)


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
    ``poll`` seconds for what other replicas or a crash left behind. One batch is under
    way at a time: what comes faster than it can be embedded waits in PostgreSQL, where it
    is found by its words.

    Args:
        backlogs: The work. They take turns: those before one do not hold it up.
        poll: Seconds.
        check_interval_s: How often it checks that the collections are still there.
    """

    def __init__(
        self, backlogs: Sequence[Backlog], *, poll: float, check_interval_s: float = 15.0
    ) -> None:
        self._backlogs = backlogs
        self._poll = poll
        self._check_interval_s = check_interval_s
        self._wake = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def wake(self) -> None:
        """Tells that something was committed."""
        self._wake.set()

    async def run(self) -> None:
        """Indexes until cancelled."""
        pause = self._poll
        checked = -self._check_interval_s
        loop = asyncio.get_running_loop()
        while True:
            try:
                if loop.time() - checked > self._check_interval_s:
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
                checked = -self._check_interval_s
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    async def index_pending(self) -> bool:
        """Indexes one batch of every backlog that has one; returns whether one had.

        Raises:
            UnavailableError: Database, engine or model cannot be reached; nothing is lost.
        """
        worked = False
        for backlog in self._backlogs:
            if await backlog.advance():
                self._quiet.clear()
                worked = True
        if not worked:
            self._quiet.set()
        return worked

    async def quiet(self, seconds: float) -> None:
        """Returns when nothing waits for the index, or after some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
