"""Callers for work that the gateway does on behalf of a project, without a request of a client."""

from __future__ import annotations

from collections.abc import Iterable

from strata.shared.auth import TokenSigner
from strata.shared.context import Caller
from strata.shared.db import Database, sql

_PROJECT = sql(
    "SELECT organization_id, partition FROM gateway.projects WHERE project_id = :project_id"
)


class ProjectCallers:
    """Makes callers with signed tokens for calls to the services.

    Args:
        signer: Signs the tokens.
        database: Connections with the service role, for organization and partition of a project.
    """

    def __init__(self, signer: TokenSigner, database: Database) -> None:
        self._signer = signer
        self._database = database

    async def of(self, project_id: str, principal: str, scopes: Iterable[str]) -> Caller | None:
        """Returns a caller for a project; None if the project does not exist.

        Args:
            project_id: The project.
            principal: The name of the work.
            scopes: Its scopes.
        """
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            result = await connection.execute(_PROJECT, {"project_id": project_id})
            row = result.one_or_none()
        if row is None:
            return None
        allowed = frozenset(scopes)
        organization_id, partition = row.organization_id, row.partition
        token = self._signer.mint(
            organization_id, project_id, principal, allowed, partition=partition
        )
        return Caller(
            organization_id, project_id, principal, allowed, token=token, partition=partition
        )
