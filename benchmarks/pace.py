"""How quick the machine is at the moment: shared ones change by half from minute to minute."""

from __future__ import annotations

import statistics
import time

import psutil

_NUMBERS = 20_000
_LOOPS = 21


def plain_loop_ms() -> float:
    """Returns the median of the processor time that a plain loop takes, in milliseconds.

    It does nothing but reckon with small numbers, so that it tells of the machine alone: figures
    of two runs can be compared as multiples of it.
    """
    return statistics.median(_loop() for _ in range(_LOOPS))


class Losses:
    """What other machines of the same host have cost since it was made.

    There the disk can stand still for seconds, whatever is asked of it, and a processor that is
    wanted is somebody else's for milliseconds.
    """

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def disk(self) -> float:
        """Returns the share of all processors' time with nothing to do but wait for the disk."""
        return self._share("iowait")

    def stolen(self) -> float:
        """Returns the share of all processors' time in which one was wanted and not to be had."""
        return self._share("steal")

    def _share(self, kind: str) -> float:
        now = psutil.cpu_times()
        passed = sum(now) - sum(self._before)
        # Not every system tells.
        lost = getattr(now, kind, 0.0) - getattr(self._before, kind, 0.0)
        return lost / passed if passed > 0 else 0.0


def _loop() -> float:
    started = time.thread_time()
    total = 0
    for number in range(_NUMBERS):
        total += number * number % 7
    return (time.thread_time() - started) * 1000
