"""The check after every migration that all tables and views are isolated by tenant."""

from __future__ import annotations

from collections.abc import Collection

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.db.driver_connection import DriverConnection

_TABLES = """
    SELECT c.relname AS name,
           c.relrowsecurity AND c.relforcerowsecurity AS forced,
           EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid
                   AND p.polcmd = '*' AND p.polroles = '{0}') AS has_policy,
           a.attnotnull AS not_null,
           (SELECT i.indkey[0] = a.attnum FROM pg_index i
             WHERE i.indrelid = c.oid AND i.indisprimary) AS leads_key
      FROM pg_class c
      LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'project_id'
                              AND NOT a.attisdropped
     WHERE c.relnamespace = CAST($1 AS regnamespace) AND c.relkind IN ('r', 'p')
     ORDER BY c.relname
    """
_VIEWS = """
    SELECT c.relname FROM pg_class c
     WHERE c.relnamespace = CAST($1 AS regnamespace)
       AND (c.relkind = 'm' OR c.relkind = 'v'
            AND NOT coalesce('security_invoker=true' = ANY(c.reloptions), false))
    """


async def check_tenancy(admin: DriverConnection, schema: str, untenanted: Collection[str]) -> None:
    """Checks that every table and view of a schema is isolated by tenant.

    Each table needs `project_id NOT NULL` first in its primary key, row-level security enabled
    and forced, and a policy for all roles. Each view needs `security_invoker`, because it would
    run with the privileges of its owner otherwise.

    Args:
        admin: A connection of any role that may read the catalogue.
        schema: The service's schema.
        untenanted: Tables without tenant data.

    Raises:
        FailedPreconditionError: The message names each table and what it lacks.
    """
    faults = []
    for table in await admin.fetch(_TABLES, schema):
        if table.name in untenanted:
            continue
        lacks = [
            fault
            for fault, present in (
                ("project_id NOT NULL", table.not_null),
                ("project_id first in its primary key", table.leads_key),
                ("forced row-level security", table.forced),
                ("a tenant policy", table.has_policy),
            )
            if not present
        ]
        if lacks:
            faults.append(f"{schema}.{table.name} lacks {', '.join(lacks)}")
    views = [row[0] for row in await admin.fetch(_VIEWS, schema)]
    faults += [f"view {schema}.{view} is not security_invoker" for view in views]
    if faults:
        raise FailedPreconditionError(
            "; ".join(faults), reason=Reason.SCHEMA_OUTDATED, metadata={"schema": schema}
        )
