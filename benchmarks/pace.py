"""Measures the current speed of the machine: the speed of shared machines varies by half."""

from __future__ import annotations

import statistics
import time

import psutil

_NUMBERS = 20_000
_LOOPS = 21


def plain_loop_ms() -> float:
    """Returns the median of the processor time that a plain loop takes, in milliseconds.

    It only adds small numbers, so it depends on the machine alone. Results of two runs can be
    compared as multiples of it.
    """
    return statistics.median(_loop() for _ in range(_LOOPS))


class Losses:
    """Time lost to other virtual machines on the same host since the object was created.

    On a shared host the disk can stall for seconds, and a processor can be taken away for
    milliseconds.
    """

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def disk(self) -> float:
        """Returns the share of processor time spent waiting for the disk (iowait)."""
        return self._share("iowait")

    def stolen(self) -> float:
        """Returns the share of processor time that the host took away (steal)."""
        return self._share("steal")

    def _share(self, kind: str) -> float:
        now = psutil.cpu_times()
        passed = sum(now) - sum(self._before)
        # Not every system reports it.
        lost = getattr(now, kind, 0.0) - getattr(self._before, kind, 0.0)
        return lost / passed if passed > 0 else 0.0


def _loop() -> float:
    started = time.thread_time()
    total = 0
    for number in range(_NUMBERS):
        total += number * number % 7
    return (time.thread_time() - started) * 1000
