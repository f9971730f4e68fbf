"""Finds child processes and their descendants; some children are engines of other tests."""

from __future__ import annotations

import contextlib
from collections.abc import Set as AbstractSet

import psutil


def children() -> set[int]:
    """Returns the child processes of this process."""
    return {child.pid for child in psutil.Process().children()}


def descendants(besides: AbstractSet[int]) -> set[int]:
    """Returns the running descendants of this process, without `besides` and their descendants."""
    processes = set()
    for child in psutil.Process().children():
        if child.pid not in besides:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (child, *child.children(recursive=True)):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        processes.add(process.pid)
    return processes
