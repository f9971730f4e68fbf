"""Tests that do not depend on how services reach each other run in one shape of Strata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shapes import FOLDERS, mark_other_shapes
from unit.house.repository import REPOSITORY


class Item:
    """A collected test, reduced to the used attributes."""

    def __init__(self, nodeid: str, **parameters: Any) -> None:
        self.nodeid = nodeid
        self.callspec = SimpleNamespace(params=parameters)
        self.marks: list[pytest.MarkDecorator] = []

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark)


def slow_ones(*items: Item) -> list[str]:
    mark_other_shapes(items)  # type: ignore[arg-type]
    return [item.nodeid for item in items if item.marks == [pytest.mark.slow]]


def test_other_shapes_of_a_test_are_slow() -> None:
    file = "tests/integration/core_memory/views/test_grep.py"
    usual = Item(f"{file}::test_a[socket]", client="socket")
    other = Item(f"{file}::test_a[inprocess]", client="inprocess")
    assert slow_ones(usual, other) == [other.nodeid]


def test_a_test_with_one_shape_is_kept() -> None:
    only = Item("tests/integration/system/test_a.py::test_a[in_process]", system="in_process")
    assert slow_ones(only) == []


def test_listed_modules_and_other_folders_have_all_shapes() -> None:
    for file in (
        "tests/integration/gateway/test_resuming.py",
        "tests/contract/channels/test_shapes.py",
    ):
        items = [Item(f"{file}::test_a[{s}]", client=s) for s in ("socket", "inprocess")]
        assert slow_ones(*items) == []


def test_listed_modules_exist() -> None:
    for folder, rule in FOLDERS.items():
        for module in rule.in_all:
            assert (REPOSITORY / folder / f"{module}.py").is_file(), module
