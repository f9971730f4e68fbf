"""Deletes old data: answers to old requests, and journals of finished runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import TextClause, text

from strata.shared.db import Database

_REQUESTS = text(
    """
    DELETE FROM agent_loop.requests WHERE (project_id, request_id) IN (
        SELECT project_id, request_id FROM agent_loop.requests
        WHERE create_time < now() - CAST(:age AS interval)
        ORDER BY create_time LIMIT :count)
    """
)
_JOURNAL = text(
    """
    DELETE FROM agent_loop.journal WHERE (project_id, run_id) IN (
        SELECT project_id, run_id FROM agent_loop.journal
        WHERE update_time < now() - CAST(:age AS interval)
        ORDER BY update_time LIMIT :count)
    """
)
_BATCH = 1_000
_PAUSE = timedelta(hours=1)


class Housekeeping:
    """Deletes old data of all projects, with the worker database role.

    Args:
        database: As the worker role.
        requests: How long a repeated request is recognised.
        journals: How long the journal of a run is kept; longer than any run may last.
    """

    def __init__(self, database: Database, *, requests: timedelta, journals: timedelta) -> None:
        self._database = database
        self._ages = ((_REQUESTS, requests), (_JOURNAL, journals))

    async def clean(self) -> int:
        """Deletes expired rows; returns their number."""
        return sum([await self._delete(statement, age) for statement, age in self._ages])

    async def keep_cleaning(self) -> None:
        """Cleans up once an hour, until it is cancelled."""
        while True:
            await self.clean()
            await asyncio.sleep(_PAUSE.total_seconds())

    async def _delete(self, statement: TextClause, age: timedelta) -> int:
        total = 0
        while True:
            async with self._database.system_transaction() as connection:
                result = await connection.execute(statement, {"age": age, "count": _BATCH})
            total += result.rowcount
            if result.rowcount < _BATCH:
                return total
