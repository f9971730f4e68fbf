"""Frozen objects are not traversed by garbage collections and do not delay them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.child_process

# In a separate process: the collector belongs to all code of a process.
PROGRAM = """
import gc
from strata.shared.gc_freeze import freeze_long_lived

# The default of Python 3.11; later versions collect less often.
gc.set_threshold(700, 10, 10)
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


def test_objects_of_the_start_do_not_lengthen_the_first_collections() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    collections, longest = map(int, run.stdout.split())
    assert collections >= 1
    assert longest < 130_000
