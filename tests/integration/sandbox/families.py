"""Finds the descendants of a process; engines of other tests are children of this process, too."""

from __future__ import annotations

import contextlib
from collections.abc import Set as AbstractSet

import psutil


def children() -> set[int]:
    """Returns the child processes of this process."""
    return {child.pid for child in psutil.Process().children()}


def descendants(besides: AbstractSet[int]) -> set[int]:
    """Returns the running descendants of this process, without those of some children."""
    processes = set()
    for child in psutil.Process().children():
        if child.pid not in besides:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (child, *child.children(recursive=True)):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        processes.add(process.pid)
    return processes
