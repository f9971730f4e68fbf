"""A project of its own for each test, and a migrated database for the tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from file_stores import as_project
from strata.core_memory.migrations import MIGRATIONS
from strata.shared import context
from strata.shared.db import Database


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    with context.use(as_project()):
        yield


# Every test has a project of its own, so that they may share the database.
@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture
async def database(urls: Any) -> AsyncIterator[Database]:
    database = Database(urls.service_url)
    yield database
    await database.close()


@pytest.fixture
async def worker(urls: Any) -> AsyncIterator[Database]:
    database = Database(urls.worker_url, pool_size=2)
    yield database
    await database.close()
