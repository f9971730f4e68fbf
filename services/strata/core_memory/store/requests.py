"""Forgetting requests: a repetition is recognised for some days, not for ever."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import text

from strata.shared.db import Database

_FORGET = text(
    """
    DELETE FROM core_memory.requests WHERE (project_id, request_id) IN (
        SELECT project_id, request_id FROM core_memory.requests
        WHERE create_time < now() - CAST(:age AS interval)
        ORDER BY create_time LIMIT :count)
    """
)
_BATCH = 1_000
_PAUSE = timedelta(hours=1)


class RequestLog:
    """The requests of all projects, as the worker role may reach them."""

    def __init__(self, database: Database, keep: timedelta) -> None:
        self._database = database
        self._keep = keep

    async def forget_old(self) -> int:
        """Deletes requests that are older than they are kept; returns how many."""
        total = 0
        while True:
            async with self._database.system_transaction() as connection:
                result = await connection.execute(_FORGET, {"age": self._keep, "count": _BATCH})
            total += result.rowcount
            if result.rowcount < _BATCH:
                return total

    async def keep_forgetting(self) -> None:
        """Forgets once an hour, for ever."""
        while True:
            await self.forget_old()
            await asyncio.sleep(_PAUSE.total_seconds())
