"""Finds what a database still holds of a text."""

from __future__ import annotations

from typing import Any


async def tables_with(connection: Any, schema: str, word: str) -> set[str]:
    """Returns the tables of a schema with a word in any column, also in bytes.

    Args:
        connection: For the superuser.
        schema: The schema.
        word: ASCII, so that JSON and bytes have it as it is.
    """
    names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    return {
        name
        for (name,) in names
        if await connection.fetchval(
            f"SELECT EXISTS (SELECT FROM {schema}.{name} r"
            " WHERE position($1 IN r::text) > 0 OR position($2 IN r::text) > 0)",
            word,
            word.encode().hex(),
        )
    }
