"""Indexes that migrations create on large tables without blocking writes."""

from __future__ import annotations

from alembic import op


def create_index_concurrently(name: str, definition: str, *, schema: str) -> None:
    """Creates an index while rows of the table are written; for a migration.

    The transaction of the migration is committed before and after, so make it the only step. A
    repetition first drops the invalid index that an interrupted attempt left.

    Args:
        name: Name of the index.
        definition: What follows ``CREATE INDEX name ON``.
        schema: Schema of the table.
    """
    with op.get_context().autocommit_block():
        # It waits for older transactions without blocking others, as long as they last.
        limit = op.get_bind().exec_driver_sql("SHOW lock_timeout").scalar_one()
        op.execute("SET lock_timeout = 0")
        try:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema}.{name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {definition}")
        finally:
            op.execute(f"SET lock_timeout = '{limit}'")
