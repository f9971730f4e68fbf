"""Which tests run in every shape of a running Strata, and which in one.

A shape is how services reach each other: in one process, or over sockets. The channels are tested
in `tests/contract/channels` and `tests/integration/channels`. Another test runs in both shapes if
its subject depends on the shape: a stream that is cut off, a call that is cancelled or late, a
large message. All others run in one; in the other they are marked as slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

_SHAPES = frozenset({"in_process", "inprocess", "socket", "sockets"})


@dataclass(frozen=True)
class FolderShapes:
    """The shapes of the tests of a folder.

    Attributes:
        usual: The shape in which every test runs.
        in_all: The modules whose tests run in all shapes.
    """

    usual: str
    in_all: frozenset[str] = field(default_factory=frozenset)


FOLDERS = {
    "tests/e2e/system": FolderShapes("in_process", frozenset({"test_sent_text"})),
    "tests/integration/agent_loop": FolderShapes(
        "sockets",
        frozenset({"test_turns", "test_recovery", "test_fail_over", "test_large_replies"}),
    ),
    "tests/integration/system": FolderShapes(
        "sockets",
        frozenset({"test_runs", "test_fail_over", "test_client_tools", "test_metering"}),
    ),
    "tests/integration/gateway": FolderShapes(
        "socket",
        frozenset({"test_turns", "test_resuming", "test_run_endings", "test_idle_uploads"}),
    ),
    "tests/integration/core_memory": FolderShapes(
        "socket", frozenset({"test_blocks", "test_followers"})
    ),
    "tests/integration/archival": FolderShapes("socket", frozenset({"test_interrupted_imports"})),
}


def shape_of(parameters: dict[str, Any]) -> str | None:
    """Returns the shape among the parameters of a test; None if it has none."""
    values = (value for value in parameters.values() if isinstance(value, str))
    return next((str(value) for value in values if value in _SHAPES), None)


def rule_of(folder: str) -> FolderShapes | None:
    """Returns the rule for the tests of a folder, which also applies to its subfolders."""
    return next((FOLDERS[name] for name in FOLDERS if f"{folder}/".startswith(f"{name}/")), None)


def mark_other_shapes(items: Iterable[pytest.Item]) -> None:
    """Marks tests as slow in shapes other than the usual one of their folder."""
    shapes: dict[str, dict[pytest.Item, str]] = defaultdict(dict)
    for item in items:
        callspec = getattr(item, "callspec", None)
        shape = shape_of(callspec.params) if callspec is not None else None
        if shape is not None:
            shapes[item.nodeid.partition("[")[0]][item] = shape
    for test, tests in shapes.items():
        folder, _, module = test.partition(".py::")[0].rpartition("/")
        rule = rule_of(folder)
        # Some tests name the only shape in which they run.
        if rule is None or module in rule.in_all or rule.usual not in tests.values():
            continue
        for item, shape in tests.items():
            if shape != rule.usual:
                item.add_marker(pytest.mark.slow)
