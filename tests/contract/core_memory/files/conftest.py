"""The stores of files over a migrated database."""

from __future__ import annotations

import pytest

from file_stores import Stores
from strata.shared.db import Database


@pytest.fixture
async def stores(database: Database) -> Stores:
    return Stores(database)
