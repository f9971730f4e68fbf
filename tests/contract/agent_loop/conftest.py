"""A database of the service's own, and a project signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from strata.agent_loop.migrations import MIGRATIONS
from strata.shared import context
from strata.shared.context import Caller, RequestContext
from strata.shared.db import Database
from strata.shared.ids import new_id


def signed_in(project: str) -> RequestContext:
    return RequestContext(caller=Caller(new_id("org"), project, "key"))


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    project_id = new_id("project")
    with context.use(signed_in(project_id)):
        yield project_id


@pytest.fixture
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture
async def database(urls: Any) -> AsyncIterator[Database]:
    database = Database(urls.service_url)
    yield database
    await database.close()
