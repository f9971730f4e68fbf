"""Keeps the heap of the C library small: one arena, and freed memory returns to the system.

All of this does nothing with another C library than glibc.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Parameters of `mallopt`, see malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# The greatest that glibc accepts. By itself it raises the threshold to the size of the largest
# block that was freed; mapping blocks separately makes models slower by a third.
_MMAP_THRESHOLD_BYTES = 32 << 20
# More than a run of a model frees, so that the next run finds it: `trim_heap` returns it.
_TRIM_THRESHOLD_BYTES = 256 << 20
_TRIM_EVERY_S = 60.0
_LEAST_CPU_S = 1.0


def use_one_arena() -> None:
    """Makes all threads of this process allocate from one heap; call it before threads start.

    By default each thread gets an arena of its own, and keeps there what its largest work needed:
    `malloc_trim` does not return the free end of any arena but the first. The threads that embed
    documents kept 20 MB each.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_ARENA_MAX, 1)
        libc.mallopt(_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def trim_heap() -> None:
    """Makes glibc return freed memory, in up to 10 ms.

    The memory of a model for a long text comes from the heap and is freed soon, but glibc keeps it
    while later allocations lie above it: 60 MB after a model was loaded, 80 MB after some long
    texts, which an idle server would never return. Threads that allocate meanwhile wait, so call it
    after heavy work, not during a search.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@asynccontextmanager
async def start_trimming(
    every_s: float = _TRIM_EVERY_S, least_cpu_s: float = _LEAST_CPU_S
) -> AsyncIterator[None]:
    """Returns freed memory periodically, after work.

    Args:
        every_s: Seconds between two checks.
        least_cpu_s: Processor time that the process must have used since the memory was last
            returned. An idle process does nothing.
    """

    async def trim_after_work() -> None:
        used = time.process_time()
        while True:
            await asyncio.sleep(every_s)
            if time.process_time() - used >= least_cpu_s:
                await asyncio.to_thread(trim_heap)
                used = time.process_time()

    trimming = asyncio.create_task(trim_after_work(), name="return freed memory")
    try:
        yield
    finally:
        trimming.cancel()
