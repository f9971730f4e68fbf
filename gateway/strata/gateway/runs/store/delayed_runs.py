"""Delayed runs of a key in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from strata.shared.db import Database

# Runs of memory agents that wait after a failure also have a start time; they are no delayed runs.
_OF_PRINCIPAL = text("""
SELECT id FROM gateway.runs
 WHERE project_id = :project_id AND principal = :principal
   AND state = 'QUEUED' AND kind <> 'SLEEPTIME' AND run_at > now()
 ORDER BY id
""")


class PostgresDelayedRuns:
    """Implements `DelayedRunStore`.

    Args:
        database: Connections with the service role; every transaction sets its project.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def delayed_of_principal(self, project_id: str, principal: str) -> Sequence[str]:
        """See `DelayedRunStore.delayed_of_principal`."""
        values = {"project_id": project_id, "principal": principal}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            return (await connection.execute(_OF_PRINCIPAL, values)).scalars().all()
