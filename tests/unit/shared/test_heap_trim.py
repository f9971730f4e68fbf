"""Freed memory is returned to the operating system."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
