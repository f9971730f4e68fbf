"""Single statements on a database, each over a connection of its own."""

from __future__ import annotations

from typing import Any

import asyncpg


async def fetch_value(url: str, query: str, *arguments: Any) -> Any:
    """Connects, runs a query, and returns the first value of its first row."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query, *arguments)
    finally:
        await connection.close()


async def execute(url: str, statement: str, *arguments: Any) -> None:
    """Connects and runs a statement."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement, *arguments)
    finally:
        await connection.close()


async def execute_all(url: str, *statements: str) -> None:
    """Connects and runs statements, each in a transaction of its own."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
