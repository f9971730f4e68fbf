"""Windows, views and searches over PostgreSQL, without the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from callers import TokenKeys
from core_memory_client import Client, open_client
from file_seeds import FileSeeds
from strata.core_memory.files.file_windows import Windows
from strata.core_memory.files.grep import Grep
from strata.core_memory.files.store.file_windows import PostgresFileWindowStore
from strata.core_memory.files.store.texts import PostgresTextStore
from strata.core_memory.settings import CoreMemorySettings
from strata.shared.clock import ManualClock, SystemClock
from strata.shared.db import Database


class Files:
    """The tested parts over one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock()
        self.seeds = FileSeeds(database)
        self.window_store = PostgresFileWindowStore(database)
        self.windows = Windows(self.window_store, self.clock)
        self.grep = Grep(PostgresTextStore(database), self.window_store, SystemClock())


# These tests seed the database in the event loop of each test.
@pytest_asyncio.fixture(params=["socket", "inprocess"])
async def client(
    request: pytest.FixtureRequest, settings: CoreMemorySettings, keys: TokenKeys
) -> AsyncIterator[Client]:
    async with open_client(request.param, settings, keys) as client:
        yield client


@pytest.fixture
def files(database: Database) -> Files:
    return Files(database)
