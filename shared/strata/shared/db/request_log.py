"""Deletes old entries of the request log, in which repeated requests are recognised."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import text

from strata.shared.db.database import Database

_BATCH = 1_000
_PAUSE = timedelta(hours=1)


class RequestLog:
    """The request log of a service over all projects, accessed as the worker role.

    Args:
        database: Connects as the worker role.
        keep: How long repeated requests are recognised.
        schema: Schema of the service; its table ``requests`` has project_id, request_id and
            create_time.
    """

    def __init__(self, database: Database, keep: timedelta, *, schema: str) -> None:
        self._database = database
        self._keep = keep
        self._forget = text(
            f"""
            DELETE FROM {schema}.requests WHERE (project_id, request_id) IN (
                SELECT project_id, request_id FROM {schema}.requests
                WHERE create_time < now() - CAST(:age AS interval)
                ORDER BY create_time LIMIT :count)
            """
        )

    async def forget_old(self) -> int:
        """Deletes requests that are older than `keep`; returns how many."""
        total = 0
        while True:
            async with self._database.system_transaction() as connection:
                result = await connection.execute(
                    self._forget, {"age": self._keep, "count": _BATCH}
                )
            total += result.rowcount
            if result.rowcount < _BATCH:
                return total

    async def keep_forgetting(self) -> None:
        """Deletes old requests once an hour, until cancelled."""
        while True:
            await self.forget_old()
            await asyncio.sleep(_PAUSE.total_seconds())
