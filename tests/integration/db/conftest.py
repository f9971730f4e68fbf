"""A small service with a real schema, and a database of it per test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strata.shared.migrate import ServiceMigrations

if TYPE_CHECKING:
    from conftest import Databases, ServiceDatabase


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> ServiceMigrations:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return ServiceMigrations(
        service="example",
        package="example_service",
        schema="example",
        untenanted=frozenset({"regions"}),
    )


@pytest.fixture
async def urls(databases: Databases, service: ServiceMigrations) -> ServiceDatabase:
    return await databases.of(service)


@pytest.fixture
def pool_size() -> int:
    # One project may use four of them.
    return 5
