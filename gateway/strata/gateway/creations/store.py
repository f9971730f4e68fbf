"""Creations of agents that have not ended, in PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from strata.shared.db import Database, sql
from strata.shared.waiting_work import any_row_sql

ROLL_BACK_AFTER_S = 240.0
"""Seconds until a creation that has not ended is rolled back.

The agent loop counts it as abandoned after three minutes, and the clocks of two hosts may differ.
"""

ANY_CREATION_DUE = any_row_sql("gateway.agent_creations", "due_time <= now()", order="due_time")
"""SQL expression: whether a creation is to be rolled back."""
_BEGIN = sql(
    """
    INSERT INTO gateway.agent_creations (project_id, id, due_time)
    VALUES (:project_id, :id, now() + make_interval(secs => :after_s))
    """
)
_END = sql("DELETE FROM gateway.agent_creations WHERE project_id = :project_id AND id = :id")
# One roll-back removes all abandoned agents of a project.
_CLAIM = sql(
    """
    WITH due AS (
        SELECT project_id FROM gateway.agent_creations WHERE due_time <= now()
        GROUP BY project_id ORDER BY min(due_time) LIMIT :limit
    ), claimed AS (
        UPDATE gateway.agent_creations c SET due_time = now() + make_interval(secs => :after_s)
        FROM due WHERE c.project_id = due.project_id AND c.due_time <= now()
        RETURNING c.project_id, c.due_time
    )
    SELECT project_id, max(due_time) AS due_time FROM claimed GROUP BY project_id
    """
)
_END_CLAIMED = sql(
    "DELETE FROM gateway.agent_creations WHERE project_id = :project_id AND due_time = :due_time"
)


@dataclass(frozen=True, slots=True)
class DueCreations:
    """Creations of a project that are to be rolled back.

    Attributes:
        project_id: The project.
        claim_time: Identifies the claim: when these creations are due again.
    """

    project_id: str
    claim_time: datetime


class PostgresAgentCreations:
    """Records creations from their beginning to their end.

    Args:
        database: Connections with the service role.
        worker: Connections with the worker role, which sees the creations of all projects.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def begin(self, project_id: str) -> str:
        """Records that a creation begins; returns an id for `end`."""
        creation_id = str(uuid.uuid4())
        values = {"project_id": project_id, "id": creation_id, "after_s": ROLL_BACK_AFTER_S}
        await self._database.execute(_BEGIN, values, project_id=project_id)
        return creation_id

    async def end(self, project_id: str, creation_id: str) -> None:
        """Records that a creation has left nothing to remove."""
        values = {"project_id": project_id, "id": creation_id}
        await self._database.execute(_END, values, project_id=project_id)

    async def claim(self, limit: int, lease_s: float) -> Sequence[DueCreations]:
        """Returns projects with due creations, and postpones these creations.

        Args:
            limit: Maximum number of projects.
            lease_s: Seconds until they are due again.
        """
        values = {"limit": limit, "after_s": lease_s}
        rows = await self._worker.system_execute(_CLAIM, values)
        return [DueCreations(row.project_id, row.due_time) for row in rows]

    async def end_claimed(self, due: DueCreations) -> None:
        """Records that claimed creations are rolled back."""
        values = {"project_id": due.project_id, "due_time": due.claim_time}
        await self._database.execute(_END_CLAIMED, values, project_id=due.project_id)
