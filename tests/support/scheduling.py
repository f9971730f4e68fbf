"""The order in which the test processes take files.

`--dist loadfile` sorts files by their number of tests. Files that share a fixture of their folder
(a whole running Strata, in one of two shapes) are then far apart, and each process starts and stops
the fixture repeatedly. Files with a single test, which take longest, come last, so that one process
waits for the others.

Here a process takes all files of a folder in one shape of its fixture before it takes another
folder. Folders whose tests take longest come first. A second process takes files of the same folder
only when no other files are left. The tests of a file stay in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from xdist.scheduler import LoadFileScheduling

# The shapes of the fixtures that the tests of a folder share.
_SHAPE = re.compile(r"^[^\[]*\[(in_process|inprocess|sockets)[-\]]")
_FOLDERS_WITH_SHAPES = (
    "tests/e2e/system",
    "tests/integration/system",
    "tests/integration/agent_loop",
)
# By kind of test, from the longest to the shortest.
_KINDS = ("tests/faults", "tests/e2e", "tests/integration", "tests/contract", "tests/unit")
# Files that take more than half a minute. They start first: no other work would be left at the end.
_LONG_FILES = ("tests/faults/test_kills.py",)


def scope_of(nodeid: str) -> str:
    """Returns the scope of a test: its file, or the tests of one shape in it."""
    file, _, test = nodeid.partition("::")
    shape = _SHAPE.match(test) if file.startswith(_FOLDERS_WITH_SHAPES) else None
    return f"{file}::{shape.group(1)}" if shape else file


@cache
def group_of(scope: str) -> str:
    """Returns the scopes that share fixtures: those of a folder, in one shape."""
    file, _, shape = scope.partition("::")
    if file in _LONG_FILES:
        return file
    return f"{file.rpartition('/')[0]}::{shape}"


def in_order(scopes: Iterable[str]) -> list[str]:
    """Returns scopes in the order in which they are started."""
    return sorted(scopes, key=_place)


@cache
def _place(scope: str) -> tuple[bool, int, str, str]:
    kind = next((n for n, kind in enumerate(_KINDS) if scope.startswith(kind)), len(_KINDS))
    return scope not in _LONG_FILES, kind, group_of(scope), scope


def next_scope(waiting: Iterable[str], latest: str | None, others: Iterable[str]) -> str:
    """Returns the scope that a process takes next.

    Args:
        waiting: The scopes that no process has taken, in order; at least one.
        latest: The scope that the process has taken before.
        others: The scopes that the other processes have taken last.
    """
    waiting = list(waiting)
    own = group_of(latest) if latest is not None else None
    taken = {group_of(scope) for scope in others}
    for scope in waiting:
        if group_of(scope) == own:
            return scope
    for scope in waiting:
        if group_of(scope) not in taken:
            return scope
    return waiting[0]


class FixtureScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Assigns files to processes so that folder fixtures are started as few times as possible."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._latest: dict[Any, str] = {}
        self._numbers: dict[Any, dict[str, int]] = {}

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        others = [scope for other, scope in self._latest.items() if other is not node]
        scope = next_scope(in_order(self.workqueue), self._latest.get(node), others)
        self._latest[node] = scope
        unit = self.workqueue.pop(scope)
        self.assigned_work.setdefault(node, {})[scope] = unit
        # xdist searches the list of all tests for each of them.
        if node not in self._numbers:
            tests = self.registered_collections[node]
            self._numbers[node] = {test: number for number, test in enumerate(tests)}
        numbers = self._numbers[node]
        node.send_runtest_some([numbers[test] for test, completed in unit.items() if not completed])
