"""A project for each test, and a database of core_memory for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_asyncio

from callers import new_project
from strata.core_memory.migrations import MIGRATIONS


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    """The project of the calls of a test."""
    with new_project() as project_id:
        yield project_id


# Every test has its own project, so tests may share the database.
@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)
