"""Precedence of foreground work, such as the calls of turns, over background work in a process."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType

# How long background work still waits after foreground work: the calls of a turn follow each other.
_PAUSE_S = 0.03
# Work that takes longer waits for something else, such as a tool, and needs no processor.
_SHORT_S = 0.1
# With a quarter of a second, each worker still begins four steps a second: a file, a part of one,
# or a batch of texts to index.
_LONGEST_WAIT_S = 0.25


class ForegroundWork:
    """The foreground work under way; steps of background work wait for it.

    ``with`` marks a block as foreground work. Steps of background work call `give_way` before they
    begin. It does not stop a step that has begun, so steps should be short.

    Args:
        pause_s: How long background work still waits after the end of foreground work, seconds.
        longest_wait_s: The longest wait of one step. Beside foreground work that never ends,
            background work slows down but continues.
        short_s: How long a block counts after its start.
        now: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        pause_s: float = _PAUSE_S,
        longest_wait_s: float = _LONGEST_WAIT_S,
        *,
        short_s: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause_s = pause_s
        self._longest_wait_s = longest_wait_s
        self._short_s = short_s
        self._now = now
        self._blocks = 0
        self._end = -math.inf

    @property
    def is_active(self) -> bool:
        """Whether foreground work is under way, or has ended a moment ago."""
        return self._now() < self._end

    def __enter__(self) -> None:
        self._blocks += 1
        self._end = self._now() + self._short_s

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._blocks -= 1
        pause_end = self._now() + self._pause_s
        self._end = max(self._end, pause_end) if self._blocks else pause_end

    async def give_way(self) -> None:
        """Waits until no foreground work is active, but not longer than the longest wait."""
        latest = self._now() + self._longest_wait_s
        # Looks again within the length of the pause: it begins when foreground work ends.
        while (left := min(self._end, latest) - self._now()) > 0:  # noqa: ASYNC110 - a time
            await asyncio.sleep(min(left, self._pause_s))


CALLS_OF_RUNS = ForegroundWork(short_s=_SHORT_S)
"""The unary calls that this process serves for runs of agents."""
