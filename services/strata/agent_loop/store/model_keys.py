"""Encrypted model keys in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.store.agents import agent_not_found
from strata.shared.context import current_project
from strata.shared.db import Database, SqlStatement, sql

# One row if the key is for the project, or its agent exists.
_OWNER = """
    SELECT 1 AS one WHERE CAST(:agent AS text) = '' OR EXISTS (
        SELECT FROM agent_loop.agents
        WHERE project_id = :project AND id = :agent AND state = 'active')
"""
_PUT = sql(
    f"""
    INSERT INTO agent_loop.model_keys (project_id, agent_id, provider, sealed)
    SELECT :project, :agent, :provider, CAST(:sealed AS bytea) FROM ({_OWNER}) AS owner
    ON CONFLICT (project_id, agent_id, provider)
    DO UPDATE SET sealed = EXCLUDED.sealed, update_time = now()
    RETURNING 1
    """
)
_DELETE = sql(
    f"""
    WITH deleted_key AS (
        DELETE FROM agent_loop.model_keys
        WHERE project_id = :project AND agent_id = :agent AND provider = :provider
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM deleted_key) AS deleted FROM ({_OWNER}) AS owner
    """
)
_OF_PROJECT = sql(
    "SELECT provider, agent_id, sealed FROM agent_loop.model_keys"
    " WHERE project_id = :project AND agent_id = ''"
)


class PostgresModelKeys:
    """Implements `domain.model.keys.ModelKeyStore`. Turns load keys together with the agent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, key: SealedKey) -> None:
        """Stores a key and replaces the previous one."""
        try:
            row = await self._one(_PUT, key.agent_id, provider=key.provider, sealed=key.sealed)
        except asyncpg.IntegrityConstraintViolationError as error:
            if error.constraint_name != "model_keys_agent":
                raise
            # The agent was removed concurrently.
            raise agent_not_found(key.agent_id) from error
        if row is None:
            raise agent_not_found(key.agent_id)

    async def delete(self, provider: str, agent_id: str) -> bool:
        """Deletes a key; returns whether it existed."""
        row = await self._one(_DELETE, agent_id, provider=provider)
        if row is None:
            raise agent_not_found(agent_id)
        return bool(row.deleted)

    async def of_project(self) -> Sequence[SealedKey]:
        """Returns the keys for all agents of the project."""
        async with self._database.transaction(read_only=True) as connection:
            rows = await connection.execute(_OF_PROJECT, {"project": current_project()})
            return [SealedKey(row.provider, row.agent_id, row.sealed) for row in rows]

    async def _one(self, statement: SqlStatement, agent_id: str, **parameters: Any) -> Any:
        bound = {"project": current_project(), "agent": agent_id, **parameters}
        async with self._database.transaction() as connection:
            return (await connection.execute(statement, bound)).one_or_none()
