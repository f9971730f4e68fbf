"""Chains of runs in PostgreSQL; the contract is `chains.ChainStore`."""

from __future__ import annotations

from collections.abc import Sequence

from strata.gateway.runs import statements as sql
from strata.gateway.runs.chains import Chain, Link, Wait
from strata.gateway.runs.states import RunState
from strata.shared.db import Database
from strata.shared.errors import NotFoundError, Reason


class PostgresChains:
    """Which runs started which, and wait for which.

    Args:
        database: As the service role; every transaction names its project.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def chain(self, project_id: str, run_id: str, limit: int) -> Chain:
        """See `ChainStore.chain`."""
        values = {"project_id": project_id, "run_id": run_id, "limit": limit}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = (await connection.execute(sql.CHAIN, values)).all()
        if not rows:
            raise run_not_found(run_id)
        return [
            Link(row.id, row.agent_id, row.conversation_id, RunState(row.state)) for row in rows
        ]

    async def waits(self, project_id: str, conversation_id: str) -> Sequence[Wait]:
        """See `ChainStore.waits`."""
        values = {"project_id": project_id, "conversation_id": conversation_id}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = (await connection.execute(sql.WAITS, values)).all()
        return [Wait(row.run_id, row.agent_id, row.conversation_id) for row in rows]

    async def awaited(self, project_id: str, run_id: str) -> Sequence[str]:
        """See `ChainStore.awaited`."""
        values = {"project_id": project_id, "run_id": run_id}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            return (await connection.execute(sql.AWAITED, values)).scalars().all()


def run_not_found(run_id: str) -> NotFoundError:
    """Returns the error for a run that does not exist in the project."""
    return NotFoundError(
        f"There is no run {run_id}.", reason=Reason.RUN_NOT_FOUND, metadata={"id": run_id}
    )
