"""The processes of a running Strata, found by their command lines."""

from __future__ import annotations

import contextlib

import psutil

from faults.live import Live
from live import alive

# A word of the command line of each.
VICTIMS = {
    "recall": "strata.recall.main",
    "archival": "strata.archival.main",
    "vectors": "strata.standalone.vectors",
    "agent_loop": "strata.agent_loop.main",
    "postgres": "postgres",
}


def process_of(live: Live, victim: str) -> psutil.Process | None:
    """Returns the process of a service or of an engine; None while it does not run."""
    for process in alive(live.tree()[1:]):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            # Workers of PostgreSQL are children of its own first process.
            if any(VICTIMS[victim] in word for word in words) and _is_first(process, victim):
                return process
    return None


def _is_first(process: psutil.Process, victim: str) -> bool:
    parent = process.parent()
    return parent is not None and not any(VICTIMS[victim] in word for word in parent.cmdline())
