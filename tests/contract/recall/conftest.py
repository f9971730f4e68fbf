"""A project and a database of recall for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from callers import new_project
from strata.recall.migrations import MIGRATIONS


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    """The project of the calls of a test."""
    with new_project() as project_id:
        yield project_id


@pytest.fixture
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)
