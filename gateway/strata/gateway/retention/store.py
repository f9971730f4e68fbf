"""Deletion of old rows in PostgreSQL, in bounded batches.

Which projects have something is found by the worker role, by jumps through an index; each batch
is one transaction of the service role within its project. Replicas may work at the same time:
rows that another one has locked are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from strata.gateway.runs.store.conditions import PENDING_APPROVAL
from strata.gateway.runs.store.statements import delete_events_sql, mark_events_deleted_sql
from strata.shared.db import Database, SqlStatement, sql
from strata.shared.project_turns import projects_in_turn

BACKLOG_FULL = "Given up: the project has too many pending deliveries."

_OLD = "now() - make_interval(secs => :kept_s)"


class RetainedKind(StrEnum):
    """Kinds of rows with a retention time."""

    EVENTS = "EVENTS"
    APPROVALS = "APPROVALS"
    DELIVERIES = "DELIVERIES"
    WEBHOOKS = "WEBHOOKS"
    BACKLOG = "BACKLOG"


def _projects(table: str, condition: str) -> SqlStatement:
    return sql(
        f"WITH RECURSIVE {projects_in_turn(table, condition)} SELECT project_id FROM in_turn"
    )


_PROJECTS = {
    RetainedKind.EVENTS: _projects(
        "gateway.runs", "finish_time IS NOT NULL AND NOT events_deleted"
    ),
    RetainedKind.APPROVALS: _projects("gateway.approvals", "true"),
    RetainedKind.DELIVERIES: _projects("gateway.webhook_deliveries", "true"),
    RetainedKind.WEBHOOKS: _projects("gateway.webhooks", "run_id <> ''"),
    RetainedKind.BACKLOG: _projects("gateway.webhook_deliveries", "state = 'PENDING'"),
}
_DELETE = {
    RetainedKind.EVENTS: sql(f"""
    WITH old_runs AS (
        SELECT id FROM gateway.runs
         WHERE project_id = :project_id AND finish_time < {_OLD} AND NOT events_deleted
         ORDER BY finish_time LIMIT :limit FOR UPDATE SKIP LOCKED
    ), deleted_events AS (
        {delete_events_sql("old_runs")}
    )
    {mark_events_deleted_sql("old_runs")}
    """),
    # Their ids are in the order of time, so old ones are found first. While the run with the answer
    # has not ended, the approval may be opened again.
    RetainedKind.APPROVALS: sql(f"""
    DELETE FROM gateway.approvals
     WHERE project_id = :project_id AND id IN (
           SELECT id FROM gateway.approvals approval
            WHERE project_id = :project_id AND NOT ({PENDING_APPROVAL})
              AND coalesce(decide_time, expire_time) < {_OLD}
              AND NOT EXISTS (
                  SELECT FROM gateway.runs run
                   WHERE run.project_id = :project_id AND run.id = approval.answer_run_id
                     AND (run.finish_time IS NULL OR run.finish_time >= {_OLD}))
            ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
    """),
    RetainedKind.DELIVERIES: sql(f"""
    DELETE FROM gateway.webhook_deliveries
     WHERE project_id = :project_id AND id IN (
           SELECT id FROM gateway.webhook_deliveries
            WHERE project_id = :project_id AND state <> 'PENDING' AND create_time < {_OLD}
            ORDER BY create_time LIMIT :limit FOR UPDATE SKIP LOCKED)
    """),
    # After its delivery, a webhook of one run has nothing more to do.
    RetainedKind.WEBHOOKS: sql(f"""
    DELETE FROM gateway.webhooks
     WHERE project_id = :project_id AND id IN (
           SELECT id FROM gateway.webhooks webhook
            WHERE project_id = :project_id AND run_id <> '' AND create_time < {_OLD}
              AND NOT EXISTS (
                  SELECT FROM gateway.webhook_deliveries delivery
                   WHERE delivery.project_id = :project_id AND delivery.webhook_id = webhook.id)
              AND NOT EXISTS (
                  SELECT FROM gateway.runs run
                   WHERE run.project_id = :project_id AND run.id = webhook.run_id
                     AND (run.finish_time IS NULL OR run.finish_time >= {_OLD}))
            ORDER BY create_time LIMIT :limit FOR UPDATE SKIP LOCKED)
    """),
}
_DROP = sql("""
UPDATE gateway.webhook_deliveries SET state = 'FAILED', next_time = NULL, last_error = :reason
 WHERE project_id = :project_id AND state = 'PENDING' AND id IN (
       SELECT id FROM gateway.webhook_deliveries
        WHERE project_id = :project_id AND state = 'PENDING'
        ORDER BY create_time DESC, id DESC OFFSET :most LIMIT :limit)
""")


class PostgresRetention:
    """Deletes old rows.

    Args:
        database: Connections with the service role; every transaction sets its project.
        worker: Connections with the worker role, for finding projects.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def projects(self, kind: RetainedKind, after: str, limit: int) -> Sequence[str]:
        """Returns the projects that have rows of a kind, in the order of their ids.

        Args:
            kind: The kind.
            after: The list begins after this project; empty for the first one.
            limit: Maximum number of projects.
        """
        values = {"after": after, "projects": limit}
        rows = await self._worker.system_query(_PROJECTS[kind], values)
        return [row[0] for row in rows]

    async def delete(self, project_id: str, kind: RetainedKind, *, days: float, limit: int) -> int:
        """Deletes a batch of rows older than `days`; returns their number.

        Args:
            project_id: The project.
            kind: The kind; for EVENTS the rows are runs, each with all of its events.
            days: Age since the end of the run, the decision of the approval, or the creation of the
                row.
            limit: Rows of the batch.
        """
        values = {"project_id": project_id, "kept_s": days * 86400, "limit": limit}
        async with self._database.transaction(project_id=project_id) as connection:
            return (await connection.execute(_DELETE[kind], values)).rowcount

    async def drop_backlog(self, project_id: str, *, most: int, limit: int) -> int:
        """Fails a batch of the oldest pending deliveries; returns their number.

        Args:
            project_id: The project.
            most: Maximum number of pending deliveries.
            limit: Rows of the batch.
        """
        values = {
            "project_id": project_id,
            "most": most,
            "limit": limit,
            "reason": BACKLOG_FULL,
        }
        async with self._database.transaction(project_id=project_id) as connection:
            return (await connection.execute(_DROP, values)).rowcount
