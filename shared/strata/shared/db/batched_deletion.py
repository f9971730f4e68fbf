"""Deletes many rows in small transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import TextClause

from strata.shared.db.database import Database

_BATCH_ROWS = 1_000


async def delete_in_batches(
    worker: Database, statement: TextClause, values: Mapping[str, Any]
) -> int:
    """Executes a DELETE until it finds no more rows; returns the number of deleted rows.

    Each batch is a transaction of its own, so that locks are short.

    Args:
        worker: Connects with the worker role.
        statement: Deletes at most ``:count`` rows.
        values: The other parameters of the statement.
    """
    total = 0
    while True:
        async with worker.system_transaction() as connection:
            result = await connection.execute(statement, {**values, "count": _BATCH_ROWS})
        total += result.rowcount
        if result.rowcount < _BATCH_ROWS:
            return total
