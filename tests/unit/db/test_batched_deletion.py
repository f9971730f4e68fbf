"""Deletion in batches, by a database that is slow for many rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from strata.protocol.errors import DeadlineExceededError
from strata.shared.db import delete_in_batches, sql

STATEMENT = sql("DELETE")


class SlowDatabase:
    """Deletes rows; a statement for more than `most` of them runs into the time limit."""

    def __init__(self, rows: int, most: int) -> None:
        self.rows, self.most = rows, most

    @asynccontextmanager
    async def system_transaction(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(execute=self._execute)

    async def _execute(self, _: object, values: Mapping[str, int]) -> Any:
        count = min(values["count"], self.rows)
        if count > self.most:
            raise DeadlineExceededError("a database statement took too long")
        self.rows -= count
        return SimpleNamespace(rowcount=count)


@pytest.mark.parametrize("most", [1, 7, 1000, 5000])
async def test_all_rows_are_deleted_in_batches_that_end_in_time(most: int) -> None:
    database: Any = SlowDatabase(2500, most)
    assert await delete_in_batches(database, STATEMENT, {}) == 2500
    assert database.rows == 0


async def test_a_row_that_cannot_be_deleted_in_time_is_an_error() -> None:
    database: Any = SlowDatabase(3, 0)
    with pytest.raises(DeadlineExceededError):
        await delete_in_batches(database, STATEMENT, {})
