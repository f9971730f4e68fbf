"""Freed memory is returned to the operating system."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from polling import eventually
from strata.shared import heap_trim
from strata.shared.heap_trim import start_trimming

# In a separate process: the heap of this one has other blocks.
_FREED = """
import os
from strata.shared.heap_trim import trim_heap

def resident_mb():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20

before = resident_mb()
# Smaller than what glibc maps by itself, larger than what Python keeps in its own pools.
blocks = [b"x" * 100_000 for _ in range(1000)]
at_the_top = [b"x" * 100_000]
del blocks
kept = resident_mb()
trim_heap()
print(kept - before, resident_mb() - before)
"""


@pytest.mark.child_process
@pytest.mark.skipif(sys.platform != "linux", reason="glibc on Linux")
def test_freed_memory_below_a_used_block_is_returned_to_the_system() -> None:
    command = [sys.executable, "-c", _FREED]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kept, after = map(int, printed.split())
    assert kept > 90
    assert after < 10


# Threads allocate at the same time: glibc gives each of them an arena, if it may.
_FREED_IN_THREADS = """
import os, threading
from strata.shared.heap_trim import trim_heap, use_one_arena

def resident_mb():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20

use_one_arena()
before = resident_mb()
# glibc then keeps up to twice as much at the end of each arena.
large = bytearray(20_000_000)
del large
allocated, read, seen = threading.Barrier(3), threading.Barrier(3), threading.Barrier(3)

def work():
    blocks = [bytearray(100_000) for _ in range(400)]
    allocated.wait()
    del blocks
    read.wait()
    seen.wait()

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
allocated.wait()
read.wait()
kept = resident_mb()
trim_heap()
print(kept - before, resident_mb() - before)
seen.wait()
"""


@pytest.mark.child_process
@pytest.mark.skipif(sys.platform != "linux", reason="glibc on Linux")
def test_memory_that_threads_freed_is_returned_to_the_system() -> None:
    command = [sys.executable, "-c", _FREED_IN_THREADS]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kept, after = map(int, printed.split())
    assert kept > 70, "it is kept for the next work"
    assert after < 10


@pytest.mark.parametrize(("least_cpu_s", "trims"), [(0.0, True), (1000.0, False)])
async def test_memory_is_returned_after_work_only(
    monkeypatch: pytest.MonkeyPatch, least_cpu_s: float, trims: bool
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(heap_trim, "trim_heap", lambda: calls.append(None))
    async with start_trimming(0.01, least_cpu_s):
        if trims:
            await eventually(lambda: len(calls) > 1)
        else:
            await asyncio.sleep(0.1)
    assert bool(calls) == trims
