"""Stops a process or a transaction in the middle of its writes, by a trigger of PostgreSQL.

A test that kills a process in the middle of its work cannot rely on polling: on a busy machine a
poll would be too late.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from polling import eventually

WAITING_SESSIONS = (
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND (database IS NULL"
    " OR database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)
"""SQL that counts the sessions waiting for a lock in this database."""

_KEY = 20_261_122
_FUNCTION = f"""
CREATE OR REPLACE FUNCTION public.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({_KEY});
    RETURN NEW;
END
$$
"""


@asynccontextmanager
async def gate(
    url: str, table: str, event: str, condition: str
) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Blocks statements that write certain rows until the context is left.

    Transactions that committed before such a statement are not affected.

    Args:
        url: The database, for the superuser.
        table: The table with its schema.
        event: INSERT or UPDATE.
        condition: SQL condition on NEW (and OLD for an UPDATE) that selects the rows.

    Yields:
        A connection with which the test can read the progress of the work.
    """
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"SELECT pg_advisory_lock({_KEY})")
        await connection.execute(_FUNCTION)
        await connection.execute(
            f"CREATE TRIGGER gate BEFORE {event} ON {table} FOR EACH ROW WHEN ({condition})"
            " EXECUTE FUNCTION public.wait_at_gate()"
        )
        yield connection
        await connection.execute(f"SELECT pg_advisory_unlock({_KEY})")
        await connection.execute(f"DROP TRIGGER gate ON {table}")
    finally:
        await connection.close()


async def waiting_sessions(connection: asyncpg.Connection[Any], count: int) -> None:
    """Waits until exactly `count` sessions wait for a lock in the database of a connection."""

    async def are_waiting() -> bool:
        return bool(await connection.fetchval(WAITING_SESSIONS) == count)

    await eventually(are_waiting)
