"""Finds the tables of a database that contain a word."""

from __future__ import annotations

from typing import Any


async def tables_with(connection: Any, schema: str, word: str) -> set[str]:
    """Returns the tables of a schema that contain a word in any column, also inside bytes.

    Args:
        connection: A connection of the superuser.
        schema: The schema.
        word: An ASCII word, which JSON and bytes contain unchanged.
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
