"""Turns of memory agents give way to turns that somebody waits for.

Both need the same event loop and the same processors. A turn works in bursts of some milliseconds:
it begins, makes a request for the model, runs tools, stores a step. A burst cannot be interrupted,
so a turn of a memory agent asks before each one. While somebody waits, bursts are rare enough that
few turns meet one; a turn of a memory agent is slower then, and still comes to its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from strata.shared.fair_slots import ANY_NUMBER, FairSlots, slots_of_short_work

# A foreground turn counts as working for so long after a burst of its own: what follows at once,
# such as the end of the turn at the gateway, needs the same processors.
_QUIET_S = 0.05
# Time between two bursts of memory agents as long as there was a foreground turn lately.
_SPACING_S = 0.1
_LATELY_S = 5.0
# A burst is put off for so long at most, however busy the foreground is.
_LONGEST_S = 1.0


class Work(Protocol):
    """How the bursts of a turn share the processors with those of other turns."""

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Holds a slot for a burst while the block lasts; waits for one first."""
        ...

    async def give_way(self) -> None:
        """Waits for the moment at which a burst without a slot may begin."""
        ...


class _Foreground:
    """Bursts of turns that somebody waits for: in turn by project, and before all others."""

    def __init__(self, slots: FairSlots, now: Callable[[], float]) -> None:
        self._slots = slots
        self._now = now
        self._bursts = 0
        self.last = float("-inf")

    @property
    def works(self) -> bool:
        """Whether there is a burst, or was one a moment ago."""
        return self._bursts > 0 or self._now() - self.last < _QUIET_S

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        self._bursts += 1
        try:
            async with self._slots.slot():
                yield
        finally:
            self._bursts -= 1
            self.last = self._now()

    async def give_way(self) -> None:
        self.last = self._now()


class _Background:
    """Bursts of turns of memory agents, one at a time, the projects in turn."""

    def __init__(self, slots: FairSlots, foreground: _Foreground, now: Callable[[], float]) -> None:
        self._slots = slots
        self._foreground = foreground
        self._now = now
        # One waits at a time; the next one is of another project where there is one.
        self._order = FairSlots(1, "bursts of memory agents", queue=ANY_NUMBER)
        self._last = float("-inf")

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        await self.give_way()
        async with self._slots.slot():
            yield

    async def give_way(self) -> None:
        async with self._order.slot():
            latest = self._now() + _LONGEST_S
            while (pause := self._pause()) > 0 and self._now() < latest:  # noqa: ASYNC110 - of time
                await asyncio.sleep(min(pause, latest - self._now()))
            self._last = self._now()

    def _pause(self) -> float:
        """Returns the seconds until the next look; 0 if a burst may begin."""
        now = self._now()
        if now - self._foreground.last > _LATELY_S and not self._foreground.works:
            return 0.0
        spacing = self._last + _SPACING_S - now
        return max(spacing, _QUIET_S / 2 if self._foreground.works else 0.0)


class TurnWork:
    """The bursts of all turns of this process.

    Args:
        slots: Slots of the bursts that somebody waits for.
        now: Seconds of a clock that only rises.
    """

    def __init__(self, slots: FairSlots, now: Callable[[], float] = time.monotonic) -> None:
        self._foreground = _Foreground(slots, now)
        self._background = _Background(
            slots_of_short_work(1, "parts of turns of memory agents"), self._foreground, now
        )

    def of(self, *, background: bool) -> Work:
        """Returns the bursts of one turn.

        Args:
            background: It is that of a memory agent.
        """
        return self._background if background else self._foreground
