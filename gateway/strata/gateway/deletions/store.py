"""Deletions of agents that have not been finished, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text

from strata.shared.db import Database
from strata.shared.waiting_work import any_row_sql

REPEAT_AFTER_S = 120.0
"""Seconds after which a deletion that has not been finished is repeated."""

ANY_DELETION_DUE = any_row_sql("gateway.agent_deletions", "due_time <= now()", order="due_time")
"""SQL expression: whether a deletion is to be repeated."""
_BEGIN = text(
    """
    INSERT INTO gateway.agent_deletions (project_id, agent_id, due_time)
    VALUES (:project_id, :agent_id, now() + make_interval(secs => :after_s))
    ON CONFLICT (project_id, agent_id) DO UPDATE SET due_time = excluded.due_time
    """
)
_END = text(
    "DELETE FROM gateway.agent_deletions WHERE project_id = :project_id AND agent_id = :agent_id"
)
_CLAIM = text(
    """
    WITH due AS (
        SELECT project_id, agent_id FROM gateway.agent_deletions WHERE due_time <= now()
        ORDER BY due_time LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE gateway.agent_deletions d SET due_time = now() + make_interval(secs => :after_s)
    FROM due WHERE d.project_id = due.project_id AND d.agent_id = due.agent_id
    RETURNING d.project_id, d.agent_id
    """
)


class PostgresAgentDeletions:
    """Records deletions from their beginning to their end.

    Args:
        database: Connections with the service role.
        worker: Connections with the worker role, which sees the deletions of all projects.
        repeat_after_s: Seconds until a deletion that has not ended is repeated.
    """

    def __init__(
        self, database: Database, worker: Database, *, repeat_after_s: float = REPEAT_AFTER_S
    ) -> None:
        self._database = database
        self._worker = worker
        self._after_s = repeat_after_s

    async def begin(self, project_id: str, agent_id: str) -> None:
        """Records that the deletion of an agent begins, or begins again."""
        values = {"project_id": project_id, "agent_id": agent_id, "after_s": self._after_s}
        await self._database.execute(_BEGIN, values, project_id=project_id)

    async def end(self, project_id: str, agent_id: str) -> None:
        """Records that nothing is left to do."""
        values = {"project_id": project_id, "agent_id": agent_id}
        await self._database.execute(_END, values, project_id=project_id)

    async def claim(self, limit: int) -> Sequence[tuple[str, str]]:
        """Returns project and agent of deletions that are due, and postpones these deletions."""
        values = {"limit": limit, "after_s": self._after_s}
        rows = await self._worker.system_execute(_CLAIM, values)
        return [(row.project_id, row.agent_id) for row in rows]
