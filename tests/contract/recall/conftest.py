"""A database of recall, and a project signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from strata.recall.migrations import MIGRATIONS
from strata.shared import context
from strata.shared.context import Caller, RequestContext
from strata.shared.db import Database
from strata.shared.ids import new_id


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    """The project of the calls of a test."""
    project_id = new_id("project")
    with context.use(RequestContext(caller=Caller(new_id("org"), project_id, "key"))):
        yield project_id


@pytest.fixture
async def database(databases: Any) -> AsyncIterator[Database]:
    """A new database, as the service uses it."""
    urls = await databases.of(MIGRATIONS)
    database = Database(urls.service_url)
    yield database
    await database.close()
