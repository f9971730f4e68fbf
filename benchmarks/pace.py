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


class DiskWait:
    """How much of the processors' time has gone by waiting for the disk since it was made.

    On a shared machine the disk can stand still for seconds, whatever is asked of it.
    """

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def share(self) -> float:
        """Returns the share of the time of all processors; 0 where the system does not tell."""
        now = psutil.cpu_times()
        passed = sum(now) - sum(self._before)
        waited = getattr(now, "iowait", 0.0) - getattr(self._before, "iowait", 0.0)
        return waited / passed if passed > 0 else 0.0


def _loop() -> float:
    started = time.thread_time()
    total = 0
    for number in range(_NUMBERS):
        total += number * number % 7
    return (time.thread_time() - started) * 1000
