"""How quick the machine is at the moment: shared ones change by half from minute to minute."""

from __future__ import annotations

import statistics
import time

_NUMBERS = 20_000
_LOOPS = 21


def plain_loop_ms() -> float:
    """Returns the median of the processor time that a plain loop takes, in milliseconds.

    It does nothing but reckon with small numbers, so that it tells of the machine alone: figures
    of two runs can be compared as multiples of it.
    """
    return statistics.median(_loop() for _ in range(_LOOPS))


def _loop() -> float:
    started = time.thread_time()
    total = 0
    for number in range(_NUMBERS):
        total += number * number % 7
    return (time.thread_time() - started) * 1000
