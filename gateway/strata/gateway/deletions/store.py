"""Deletions of agents that have not been finished, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.gateway.runs.store.statements import delete_events_sql, mark_events_deleted_sql
from strata.shared.db import Database, sql
from strata.shared.waiting_work import any_row_sql

REPEAT_AFTER_S = 120.0
"""Seconds after which a deletion that has not been finished is repeated."""
_GRACE_S = 5.0
# The deletion of the agent first deletes those that are left of its memory agents.
_READERS_AFTER_S = 30.0

ANY_DELETION_DUE = any_row_sql("gateway.agent_deletions", "due_time <= now()", order="due_time")
"""SQL expression: whether a deletion is to be repeated."""
_BEGIN = sql(
    """
    INSERT INTO gateway.agent_deletions (project_id, agent_id, due_time)
    VALUES (:project_id, :agent_id, now() + make_interval(secs => :after_s))
    ON CONFLICT (project_id, agent_id) DO UPDATE SET due_time = excluded.due_time
    """
)
_END = sql(
    "DELETE FROM gateway.agent_deletions WHERE project_id = :project_id AND agent_id = :agent_id"
)
_POSTPONE = sql(
    """
    UPDATE gateway.agent_deletions SET due_time = now() + make_interval(secs => :after_s)
     WHERE project_id = :project_id AND agent_id = :agent_id
    """
)
# The latest document of an agent is read by the run of its mark, even if the reader is deleted.
_BEGIN_READERS = sql(
    f"""
    INSERT INTO gateway.agent_deletions (project_id, agent_id, due_time)
    SELECT DISTINCT :project_id, reader.agent_id,
                    now() + make_interval(secs => {_READERS_AFTER_S})
      FROM gateway.memory_agents mark
      LEFT JOIN gateway.runs run ON run.project_id = mark.project_id AND run.id = mark.run_id
     CROSS JOIN LATERAL (VALUES (mark.memory_agent_id), (run.agent_id)) AS reader (agent_id)
     WHERE mark.project_id = :project_id AND mark.agent_id = :agent_id AND reader.agent_id <> ''
        ON CONFLICT DO NOTHING
    """
)
# Followers of a run that was cancelled a moment ago still read its end.
_ERASE = sql(
    f"""
    WITH batch AS (
        SELECT id, events_deleted, coalesce(
                   finish_time < now() - make_interval(secs => {_GRACE_S}), false) AS ended
          FROM gateway.runs
         WHERE project_id = :project_id AND agent_id = :agent_id AND id > :after
         ORDER BY id LIMIT :limit
    ), memory_agents AS (
        -- Those that were removed from the agent before.
        INSERT INTO gateway.agent_deletions (project_id, agent_id, due_time)
        SELECT DISTINCT :project_id, run.agent_id, now()
          FROM batch JOIN gateway.runs run
            ON run.project_id = :project_id AND run.parent_run_id = batch.id
         WHERE run.kind = 'SLEEPTIME' AND NOT run.events_deleted
            ON CONFLICT DO NOTHING
    ), erasable AS (
        SELECT id FROM batch WHERE ended AND NOT events_deleted
    ), deleted_events AS (
        {delete_events_sql("erasable")}
    ), flagged AS (
        {mark_events_deleted_sql("erasable")}
    )
    SELECT count(*) AS size, max(id) AS last_id,
           coalesce(bool_or(NOT ended), false) AS has_open FROM batch
    """
)
_DELETE_APPROVALS = sql(
    """
    DELETE FROM gateway.approvals WHERE project_id = :project_id AND id IN (
           SELECT id FROM gateway.approvals WHERE project_id = :project_id AND agent_id = :agent_id
            ORDER BY id LIMIT :limit)
    """
)
_CLAIM = sql(
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


@dataclass(frozen=True, slots=True)
class ErasedBatch:
    """What was done with a batch of the runs of an agent.

    Attributes:
        size: Number of runs.
        last_id: The last of them; empty if there is none.
        has_open: Whether some have not ended, or only a moment ago, and keep their events for now.
    """

    size: int
    last_id: str
    has_open: bool


class PostgresAgentDeletions:
    """Records deletions from their beginning to their end.

    Args:
        database: Connections with the service role.
        worker: Connections with the worker role, which sees the deletions of all projects.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def begin(self, project_id: str, agent_id: str) -> None:
        """Records that the deletion of an agent begins, or begins again."""
        values = {"project_id": project_id, "agent_id": agent_id, "after_s": REPEAT_AFTER_S}
        await self._database.execute(_BEGIN, values, project_id=project_id)

    async def end(self, project_id: str, agent_id: str) -> None:
        """Records that nothing is left to do."""
        values = {"project_id": project_id, "agent_id": agent_id}
        await self._database.execute(_END, values, project_id=project_id)

    async def postpone(
        self, project_id: str, agent_id: str, after_s: float = REPEAT_AFTER_S
    ) -> None:
        """Sets after how many seconds a deletion is due again."""
        values = {"project_id": project_id, "agent_id": agent_id, "after_s": after_s}
        await self._database.execute(_POSTPONE, values, project_id=project_id)

    async def begin_readers(self, project_id: str, agent_id: str) -> None:
        """Records deletions of the memory agents that read for an agent.

        They are deleted with it, and the gateway has to erase their events as well.
        """
        values = {"project_id": project_id, "agent_id": agent_id}
        await self._database.execute(_BEGIN_READERS, values, project_id=project_id)

    async def erase_events(
        self, project_id: str, agent_id: str, after: str, limit: int
    ) -> ErasedBatch:
        """Deletes the events of a batch of runs of an agent, in the order of their ids.

        Args:
            project_id: The project.
            agent_id: The agent.
            after: The run after which the batch begins; empty for the first.
            limit: Runs of the batch.
        """
        values = {"project_id": project_id, "agent_id": agent_id, "after": after, "limit": limit}
        row = (await self._database.execute(_ERASE, values, project_id=project_id)).one()
        return ErasedBatch(row.size, row.last_id or "", row.has_open)

    async def delete_approvals(self, project_id: str, agent_id: str, limit: int) -> int:
        """Deletes a batch of the requests for approval of an agent; returns their number."""
        values = {"project_id": project_id, "agent_id": agent_id, "limit": limit}
        result = await self._database.execute(_DELETE_APPROVALS, values, project_id=project_id)
        return result.rowcount

    async def claim(self, limit: int, lease_s: float) -> Sequence[tuple[str, str]]:
        """Returns project and agent of deletions that are due, and postpones these deletions.

        Args:
            limit: Maximum number of deletions.
            lease_s: Seconds until they are due again.
        """
        values = {"limit": limit, "after_s": lease_s}
        rows = await self._worker.system_execute(_CLAIM, values)
        return [(row.project_id, row.agent_id) for row in rows]
