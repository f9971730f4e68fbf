"""Deletes many rows in small transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata.protocol.errors import DeadlineExceededError
from strata.shared.db.database import Database
from strata.shared.db.statements import SqlStatement

_BATCH_ROWS = 1_000


async def delete_in_batches(
    worker: Database, statement: SqlStatement, values: Mapping[str, Any]
) -> int:
    """Executes a DELETE until it finds no more rows; returns the number of deleted rows.

    Each batch is a transaction of its own, so that locks are short. A batch that runs into the time
    limit of statements is repeated with fewer rows.

    Args:
        worker: Connects with the worker role.
        statement: Deletes at most ``:count`` rows.
        values: The other parameters of the statement.

    Raises:
        DeadlineExceededError: A single row cannot be deleted in time.
    """
    total, count = 0, _BATCH_ROWS
    while True:
        try:
            async with worker.system_transaction() as connection:
                result = await connection.execute(statement, {**values, "count": count})
        except DeadlineExceededError:
            # Rows may be large, such as returns of tools with images.
            if count == 1:
                raise
            count = max(1, count // 4)
            continue
        total += result.rowcount
        if result.rowcount < count:
            return total
