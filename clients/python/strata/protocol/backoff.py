"""Pauses between the attempts of one call (exponential back-off with jitter)."""

from __future__ import annotations

import asyncio
import random

from strata.protocol.errors import StrataError

FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
# With less time left, another attempt cannot succeed.
_LEAST_S = 0.1


class Backoff:
    """Pauses that double from 0.1 s to 2 s, with a jitter of 25%, until a deadline.

    Args:
        until: Time of the event loop after which no attempt is made.
        first_s: The first pause, in seconds.
    """

    def __init__(self, until: float, *, first_s: float = FIRST_PAUSE_S) -> None:
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._next = first_s

    async def wait(self, error: StrataError, *, hinted: bool = True) -> bool:
        """Waits before the next attempt; returns False if no time is left for one.

        It then returns at once, unless the pause takes longer than planned.

        Args:
            error: How the last attempt failed.
            hinted: Whether the retry hint of the error is a lower bound of the pause.
        """
        hint = (error.retry_after or 0.0) if hinted else 0.0
        pause = max(self._next * random.uniform(0.75, 1.25), hint)  # noqa: S311
        self._next = min(2 * self._next, _LONGEST_PAUSE_S)
        if not self._has_time_after(pause):
            return False
        await asyncio.sleep(pause)
        # A busy event loop resumes late. An attempt that ends with the deadline would hide how the
        # last one failed.
        return self._has_time_after(0.0)

    def _has_time_after(self, pause: float) -> bool:
        return self._loop.time() + pause + _LEAST_S <= self._until
