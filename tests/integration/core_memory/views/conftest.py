"""Windows, views and searches over PostgreSQL, without the wire."""

from __future__ import annotations

import pytest

from file_seeds import FileSeeds
from strata.core_memory.files.file_windows import Windows
from strata.core_memory.files.grep import Grep
from strata.core_memory.files.store.file_windows import PostgresFileWindowStore
from strata.core_memory.files.store.texts import PostgresTextStore
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


@pytest.fixture
def files(database: Database) -> Files:
    return Files(database)
