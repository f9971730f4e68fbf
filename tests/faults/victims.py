"""The processes of a running Strata, found by their command lines."""

from __future__ import annotations

import contextlib

import psutil

from faults.live import Live
from live import alive

# A part of the command line of each process.
PROCESSES = {
    "gateway": "strata.gateway.main",
    "agent_loop": "strata.agent_loop.main",
    "core_memory": "strata.core_memory.main",
    "recall": "strata.recall.main",
    "archival": "strata.archival.main",
    "tool_execution": "strata.tool_execution.main",
    "tool_runner": "strata.tool_runner.main",
    "postgres": "postgres",
    "vectors": "strata.standalone.vectors",
}


def replicas_of(live: Live, service: str) -> list[psutil.Process]:
    """Returns the running processes of a service or of an engine."""
    matching = []
    mark = PROCESSES[service]
    for process in alive(live.tree()[1:]):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            parent = process.parent()
            if any(mark in word for word in process.cmdline()) and not (
                # Child processes of PostgreSQL and of services have the same command line.
                parent is not None and any(mark in word for word in parent.cmdline())
            ):
                matching.append(process)
    return matching


def process_of(live: Live, service: str) -> psutil.Process | None:
    """Returns the process of a service or of an engine; None while it does not run.

    `live.runtime` has the pids of the start; a process that was restarted has another pid.
    """
    return next(iter(replicas_of(live, service)), None)


def kill(live: Live, service: str) -> psutil.Process:
    """Kills the process of a service or of an engine, which must run, and returns it."""
    process = process_of(live, service)
    assert process is not None, f"{service} does not run"
    process.kill()
    return process
