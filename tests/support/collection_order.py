"""The order in which each test process imports the test modules.

At the first run after a change, pytest compiles each test module, with the values of its
assertions, and keeps the result for later runs. Test processes that import the modules in the same
order compile all of them at the same time, each for itself. Here each process begins with another
folder and finds most of the others compiled. The tests stay in the usual order.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def parts_of(top: Path) -> list[Path]:
    """Returns the folders and modules in the folders of `top` that have tests, in order."""
    parts = {top.joinpath(*module.relative_to(top).parts[:2]) for module in top.rglob("test_*.py")}
    return sorted(parts)


def rotated(parts: list[Path], number: int, count: int) -> list[Path]:
    """Returns the parts in the order of process `number` of `count`."""
    start = len(parts) * number // count
    return parts[start:] + parts[:start]


def rotate_collection(config: pytest.Config) -> None:
    """Has a test process start with its share of the modules, if it collects all tests."""
    worker = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    parts = [part for top in config.args for part in parts_of(config.rootpath / top)]
    number = int(worker["workerid"].removeprefix("gw"))
    config.args = [str(part) for part in rotated(parts, number, worker["workercount"])]


def in_usual_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns tests in the order of their folders and modules, in which one process collects."""
    return sorted(items, key=lambda item: item.path.parts)
