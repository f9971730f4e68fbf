"""The service over a socket and inside the process, on one database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from callers import TokenKeys
from core_memory_client import Client, open_client
from strata.core_memory.migrations import MIGRATIONS
from strata.core_memory.settings import CoreMemorySettings
from strata.shared.context import use
from strata.shared.ids import new_id


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture(scope="module")
def settings(urls: Any, keys: TokenKeys) -> CoreMemorySettings:
    return CoreMemorySettings(
        port=0,
        database_url=urls.service_url,
        worker_database_url=urls.worker_url,
        # No process listens on this port: archival is down in these tests.
        targets={"archival": "127.0.0.1:1"},
        token_public_keys=keys.public,
        drain_s=0,
        grace_s=0.1,
        pool_size=8,
    )


# Every test has a project of its own, so that those of a module may share the service.
@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["socket", "inprocess"])
async def client(
    request: pytest.FixtureRequest, settings: CoreMemorySettings, keys: TokenKeys
) -> AsyncIterator[Client]:
    async with open_client(request.param, settings, keys) as client:
        yield client


@pytest.fixture(autouse=True)
def project(keys: TokenKeys) -> Iterator[str]:
    """A new project, signed in."""
    project_id = new_id("project")
    with use(keys.context(project_id)):
        yield project_id


@pytest_asyncio.fixture(loop_scope="session")
async def admin(urls: Any) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(urls.admin_url)
    yield connection
    await connection.close()
