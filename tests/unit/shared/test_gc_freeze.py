"""What is set aside neither is walked nor puts collections off."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.child_process

# In a process of its own: the collector belongs to all that runs in one.
PROGRAM = """
import gc
from strata.shared.gc_freeze import freeze_long_lived

start = [[number] for number in range(1_000_000)]
gc.collect()
freeze_long_lived()
walked = []

def collects(phase, info):
    if phase == "start" and info["generation"] == 2:
        walked.append(len(gc.get_objects()))

gc.callbacks.append(collects)
since = [[number] for number in range(120_000)]
print(len(walked), max(walked, default=0))
"""


def test_a_large_start_does_not_make_the_first_collections_long() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    collections, longest = map(int, run.stdout.split())
    assert collections >= 1
    assert longest < 130_000
