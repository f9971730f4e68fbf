"""Store of the encrypted secrets of tools in PostgreSQL."""

from __future__ import annotations

from strata.shared.context import current_project
from strata.shared.db import Database, sql

_PUT = sql(
    """
    INSERT INTO tool_execution.secrets (project_id, name, sealed)
    VALUES (:project, :name, CAST(:sealed AS bytea))
    ON CONFLICT (project_id, name) DO UPDATE SET sealed = EXCLUDED.sealed, update_time = now()
    """
)
_DELETE = sql("DELETE FROM tool_execution.secrets WHERE project_id = :project AND name = :name")


class PostgresSecretStore:
    """Implements `domain.registry.SecretStore`. Calls read their secrets with their tools."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, name: str, sealed: bytes) -> None:
        """Stores a secret; it replaces an earlier one of the same name."""
        bound = {"project": current_project(), "name": name, "sealed": sealed}
        async with self._database.transaction() as connection:
            await connection.execute(_PUT, bound)

    async def delete(self, name: str) -> None:
        """Deletes a secret if it exists."""
        async with self._database.transaction() as connection:
            await connection.execute(_DELETE, {"project": current_project(), "name": name})
