"""Gives turns that a user waits for priority over turns of memory agents.

All turns share one event loop and the processors. A turn works in bursts of some milliseconds: it
begins, builds a model request, runs tools, stores a step. A burst cannot be interrupted, so a
background turn (one of a memory agent) waits for a free moment before each burst. While foreground
turns run, background bursts are spaced so far apart that they rarely delay one. Background turns
get slower, but always finish.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from strata.shared.fair_slots import ANY_NUMBER, FairSlots, slots_of_short_work

# A foreground turn counts as working for this long after its burst, since work that follows at
# once, such as the end of the turn at the gateway, needs the same processors.
_QUIET_S = 0.05
# Time between two background bursts if there was a foreground turn within the last _LATELY_S.
_SPACING_S = 0.1
_LATELY_S = 5.0
# A background burst is delayed at most this long, however busy the foreground is.
_LONGEST_S = 1.0


class Work(Protocol):
    """How the bursts of a turn share the processors with other turns."""

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Waits for a slot and holds it while the block runs."""
        ...

    async def give_way(self) -> None:
        """Waits until a burst without a slot may begin."""
        ...


class _Foreground:
    """Bursts of foreground turns: shared fairly by project, and before all others."""

    def __init__(self, slots: FairSlots, now: Callable[[], float]) -> None:
        self._slots = slots
        self._now = now
        self._bursts = 0
        self.last = float("-inf")

    @property
    def works(self) -> bool:
        """Whether a burst runs, or ended within the last _QUIET_S."""
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
    """Bursts of background turns: one at a time, shared fairly by project."""

    def __init__(self, slots: FairSlots, foreground: _Foreground, now: Callable[[], float]) -> None:
        self._slots = slots
        self._foreground = foreground
        self._now = now
        # Only one turn at a time waits for its moment; projects take turns.
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
        """Returns the seconds until the next check; 0 if a burst may begin."""
        now = self._now()
        if now - self._foreground.last > _LATELY_S and not self._foreground.works:
            return 0.0
        spacing = self._last + _SPACING_S - now
        return max(spacing, _QUIET_S / 2 if self._foreground.works else 0.0)


class TurnWork:
    """Schedules the bursts of all turns of this process.

    Args:
        slots: Slots for the bursts of foreground turns.
        now: A monotonic clock, in seconds.
    """

    def __init__(self, slots: FairSlots, now: Callable[[], float] = time.monotonic) -> None:
        self._foreground = _Foreground(slots, now)
        self._background = _Background(
            slots_of_short_work(1, "parts of turns of memory agents"), self._foreground, now
        )

    def of(self, *, background: bool) -> Work:
        """Returns the scheduler for one turn.

        Args:
            background: Whether it is a turn of a memory agent.
        """
        return self._background if background else self._foreground
