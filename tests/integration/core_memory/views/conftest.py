"""Windows, views and searches over PostgreSQL, without the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from file_seeds import FileSeeds
from strata.core_memory.files.file_windows import Windows
from strata.core_memory.files.grep import Grep
from strata.core_memory.files.store.file_windows import PostgresWindowStore
from strata.core_memory.files.store.texts import PostgresTextStore
from strata.shared.clock import ManualClock, SystemClock
from strata.shared.db import Database


class Files:
    """Everything under test, over one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock()
        self.seeds = FileSeeds(database)
        self.window_store = PostgresWindowStore(database)
        self.windows = Windows(self.window_store, self.clock)
        self.grep = Grep(PostgresTextStore(database), self.window_store, SystemClock())


@pytest.fixture
async def files(urls: Any) -> AsyncIterator[Files]:
    database = Database(urls.service_url, pool_size=8)
    yield Files(database)
    await database.close()
