"""Unit tests start no engine and no child process, except those marked `child_process`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
_forbidden_in = ""


def _refuse(event: str, _arguments: tuple[object, ...]) -> None:
    if _forbidden_in and event in _STARTS:
        raise RuntimeError(f"{_forbidden_in} starts a process; mark it with child_process")


# An audit hook cannot be removed; it does nothing between the tests.
sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def no_child_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes a test without the marker fail if it starts a process."""
    global _forbidden_in
    if request.node.get_closest_marker("child_process") is None:
        _forbidden_in = request.node.nodeid
    try:
        yield
    finally:
        _forbidden_in = ""
