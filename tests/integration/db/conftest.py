"""A small room with a real schema, and a database of it for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strata.shared.db import Database
from strata.shared.migrate import RoomMigrations

if TYPE_CHECKING:
    from conftest import Databases, RoomDatabase


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> RoomMigrations:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return RoomMigrations(
        room="example", package="example_room", schema="example", untenanted=frozenset({"regions"})
    )


@pytest.fixture
async def urls(databases: Databases, room: RoomMigrations) -> RoomDatabase:
    return await databases.of(room)


@pytest.fixture
async def database(urls: RoomDatabase) -> AsyncIterator[Database]:
    database = Database(urls.service_url, pool_size=4)
    yield database
    await database.close()


@pytest.fixture
async def worker(urls: RoomDatabase) -> AsyncIterator[Database]:
    database = Database(urls.worker_url, pool_size=2)
    yield database
    await database.close()
