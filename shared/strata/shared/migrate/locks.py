"""The sessions that hold locks of a service's tables, for the error of a migration that waits."""

from __future__ import annotations

from collections.abc import Sequence

from strata.shared.db.driver_connection import DriverConnection

_SHOWN = 5
_HOLDERS = """
    SELECT a.pid, a.usename, a.application_name, a.state,
           extract(epoch FROM clock_timestamp() - a.xact_start)::bigint AS seconds
      FROM pg_stat_activity a
     WHERE a.pid <> pg_backend_pid()
       AND a.pid IN (SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                      WHERE l.granted AND c.relnamespace = CAST($1 AS regnamespace)
                        AND l.database = (SELECT oid FROM pg_database
                                           WHERE datname = current_database()))
     ORDER BY a.xact_start NULLS LAST
     LIMIT $2
    """


async def lock_holders(admin: DriverConnection, schema: str) -> Sequence[str]:
    """Returns descriptions of the sessions with locks of the tables of a schema, oldest first.

    Prepared transactions hold locks without a session and are not among them.
    """
    rows = await admin.fetch(_HOLDERS, schema, _SHOWN)
    return [
        f"pid {row.pid} ({row.application_name or 'no application name'}, user {row.usename},"
        f" {row.state}, transaction of {row.seconds or 0} s)"
        for row in rows
    ]
