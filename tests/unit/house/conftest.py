"""Lists the files of the repository once, before the tests, which may start no process."""

from __future__ import annotations

import pytest

from unit.house.repository import tracked


@pytest.fixture(scope="session", autouse=True)
def tracked_files() -> None:
    """Has git list the files; the tests use the cached list."""
    tracked()
