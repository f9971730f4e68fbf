"""A project and a database of tool_execution for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from callers import new_project
from strata.shared.scopes import Scope
from strata.tool_execution.migrations import MIGRATIONS

SCOPES = (Scope.READ, Scope.WRITE, Scope.RUN, Scope.SECRETS)


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    """The project of the calls of a test."""
    with new_project(SCOPES) as project_id:
        yield project_id


@pytest.fixture
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)
