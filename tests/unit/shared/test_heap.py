"""What is freed is given back."""

from __future__ import annotations

import subprocess
import sys

import pytest

_BLOCKS = 40
_BLOCK_BYTES = 2 << 20

# A block that was freed makes glibc take smaller ones from the heap; and there none is given
# back while something lies above it.
_PROGRAM = f"""
import os, sys
if "keep_little" in sys.argv:
    from strata.shared import heap
    heap.keep_little()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
large = b"x" * (30 << 20)
del large
before = resident()
blocks, above = [], []
for _ in range({_BLOCKS}):
    blocks.append(b"x" * {_BLOCK_BYTES})
    above.append(b"y" * 60_000)
blocks.clear()
print(resident() - before)
"""


def _kept(*arguments: str) -> int:
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc on Linux")
def test_large_blocks_that_were_freed_are_given_back() -> None:
    blocks = _BLOCKS * _BLOCK_BYTES
    assert _kept() > 0.9 * blocks, "this is what is to be avoided"
    assert _kept("keep_little") < 0.2 * blocks
