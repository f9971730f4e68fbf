"""Stores the retention of projects in PostgreSQL, and deletes older messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from strata.recall.domain.messages import Cursor
from strata.recall.domain.retention import Retention, SweepResult
from strata.recall.store.images import delete_unused_images
from strata.shared.context import current_project
from strata.shared.db import Database, Row, sql

_GET = sql("SELECT days, update_time FROM recall.retention WHERE project_id = :project")
_SET = sql(
    """
    INSERT INTO recall.retention AS r (project_id, days, update_time)
    VALUES (:project, :days, :now)
    ON CONFLICT (project_id) DO UPDATE SET days = excluded.days, update_time =
        CASE WHEN r.days = excluded.days THEN r.update_time ELSE excluded.update_time END
    RETURNING days, update_time
    """
)
_PROJECTS = sql(
    "SELECT project_id, days FROM recall.retention WHERE days > 0 AND project_id > :after"
    " ORDER BY project_id LIMIT :limit"
)
_AGENTS = sql(
    "SELECT DISTINCT agent_id FROM recall.windows"
    " WHERE project_id = :project AND agent_id > :after ORDER BY agent_id LIMIT :limit"
)
_OLD = """
    SELECT id, conversation_id, run_id, step, create_time FROM recall.messages
    WHERE project_id = :project AND agent_id = :agent AND create_time < :before
      AND (create_time, id) > (:after_time, :after_id)
    ORDER BY create_time, id LIMIT :limit
"""
# Every transaction that adds a message to a window locks the window. So these locks keep deleted
# messages from being added, and the windows do not change until the next statement.
_LOCK = sql(
    f"""
    SELECT conversation_id FROM recall.windows
    WHERE project_id = :project
      AND conversation_id IN (SELECT o.conversation_id FROM ({_OLD}) o)
    ORDER BY conversation_id FOR NO KEY UPDATE
    """
)
_SWEEP = sql(
    f"""
    WITH old AS MATERIALIZED ({_OLD}), step_messages AS (
        SELECT o.id AS of_id, m.* FROM old o
        JOIN recall.messages m ON m.project_id = :project AND m.id = o.id
        UNION ALL
        -- A call is deleted with its return: all messages of a step or none.
        SELECT o.id AS of_id, m.* FROM old o
        JOIN recall.messages m ON m.project_id = :project AND m.run_id = o.run_id
         AND m.run_id <> '' AND m.conversation_id = o.conversation_id
         AND m.step = o.step AND m.id <> o.id
        WHERE o.step > 0
    ), deletable AS (
        SELECT of_id FROM step_messages m GROUP BY of_id HAVING NOT bool_or(
            m.create_time >= :before OR m.pinned OR m.sequence = 0
            OR NOT m.conversation_id = ANY(CAST(:locked AS text[]))
            OR EXISTS (
                SELECT FROM recall.windows w
                WHERE w.project_id = :project AND w.conversation_id = m.conversation_id
                  AND m.id = ANY(w.message_ids))
            -- Scalar subqueries use the index for each row; EXISTS reads the whole table.
            OR (SELECT true FROM recall.compactions c
                WHERE c.project_id = :project AND c.first_message_id = m.id LIMIT 1) IS NOT NULL
            OR (SELECT true FROM recall.compactions c
                WHERE c.project_id = :project AND c.last_message_id = m.id LIMIT 1) IS NOT NULL)
    ), deleted AS (
        DELETE FROM recall.messages
        WHERE project_id = :project
          AND id IN (SELECT m.id FROM step_messages m JOIN deletable USING (of_id))
        RETURNING id, conversation_id, sequence, role, index_state
    ), image_uses AS (
        DELETE FROM recall.message_images mi USING deleted
        WHERE mi.project_id = :project AND mi.message_id = deleted.id
        RETURNING mi.image_id
    ), deleted_compactions AS (
        DELETE FROM recall.compactions c USING deleted
        WHERE c.project_id = :project AND c.conversation_id = deleted.conversation_id
          AND c.sequence = deleted.sequence AND deleted.role = 'summary'
    ), forgotten AS (
        INSERT INTO recall.forgotten_messages (project_id, message_id)
        SELECT :project, id FROM deleted WHERE index_state <> 'none'
        ON CONFLICT (project_id, message_id) DO NOTHING
    )
    SELECT (SELECT count(*) FROM deleted) AS deleted, count(*) OVER () AS examined, create_time, id,
           (SELECT array_agg(DISTINCT image_id) FROM image_uses) AS images
    FROM old
    ORDER BY create_time DESC, id DESC LIMIT 1
    """
)
# Rows that another sweep or the deletion of the agent has locked are skipped. No window is locked:
# a run of this age cannot start again, see `TURN_DAYS`, and the turn of an active run stays.
_SWEEP_TURNS = sql(
    """
    WITH old AS MATERIALIZED (
        SELECT run_id, conversation_id, begin_time FROM recall.turns
        WHERE project_id = :project AND agent_id = :agent AND begin_time < :before
          AND (begin_time, run_id) > (:after_time, :after_id)
        ORDER BY begin_time, run_id LIMIT :limit
    ), deletable AS (
        SELECT t.run_id FROM recall.turns t JOIN old USING (run_id)
        WHERE t.project_id = :project
          AND NOT EXISTS (
              SELECT FROM recall.windows w
              WHERE w.project_id = :project AND w.conversation_id = old.conversation_id
                AND w.active_run_id = old.run_id)
          -- As a scalar it is looked up in the index; EXISTS reads the whole table.
          AND (SELECT true FROM recall.messages m
               WHERE m.project_id = :project AND m.run_id = old.run_id AND m.run_id <> ''
                 AND m.conversation_id = old.conversation_id LIMIT 1) IS NULL
        FOR UPDATE OF t SKIP LOCKED
    ), deleted AS (
        DELETE FROM recall.turns
        WHERE project_id = :project AND run_id IN (SELECT run_id FROM deletable) RETURNING 1
    )
    SELECT (SELECT count(*) FROM deleted) AS deleted, count(*) OVER () AS examined,
           begin_time AS create_time, run_id AS id FROM old
    ORDER BY begin_time DESC, run_id DESC LIMIT 1
    """
)

# Removed twice from the index, as deleted agents are: a write that read the message before may
# still be running when the message is deleted.
_FORGOTTEN = sql(
    """
    (SELECT project_id, message_id FROM recall.forgotten_messages
     WHERE NOT swept ORDER BY delete_time LIMIT :limit)
    UNION ALL
    (SELECT project_id, message_id FROM recall.forgotten_messages
     WHERE swept AND delete_time < now() - CAST(:settled AS interval)
     ORDER BY delete_time LIMIT :limit)
    """
)
_SWEPT = sql(
    "UPDATE recall.forgotten_messages SET swept = true"
    " WHERE project_id = :project AND message_id = ANY(CAST(:ids AS text[]))"
)
_SETTLED = sql(
    "DELETE FROM recall.forgotten_messages"
    " WHERE project_id = :project AND message_id = ANY(CAST(:ids AS text[])) AND swept"
    " AND delete_time < now() - CAST(:settled AS interval)"
)
_EPOCH = datetime.fromisoformat("0001-01-02T00:00:00+00:00")


class PostgresRetentionSettings:
    """Implements `RetentionSettings`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self) -> Retention:
        """Returns the project's retention."""
        async with self._database.transaction(read_only=True) as connection:
            row = (await connection.execute(_GET, {"project": current_project()})).one_or_none()
        return Retention() if row is None else Retention(row.days, row.update_time)

    async def set(self, days: int, now: datetime) -> Retention:
        """Sets the project's retention."""
        values = {"project": current_project(), "days": days, "now": now}
        async with self._database.transaction() as connection:
            row = (await connection.execute(_SET, values)).one()
        return Retention(row.days, row.update_time)


class PostgresOldMessages:
    """Implements `OldMessages`.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role, which sees the retention of all projects.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def projects(self, after: str, limit: int) -> Sequence[tuple[str, int]]:
        """Returns projects with a limited retention, and its days."""
        async with self._worker.system_transaction(read_only=True) as connection:
            rows = await connection.execute(_PROJECTS, {"after": after, "limit": limit})
            return [(row.project_id, row.days) for row in rows]

    async def agents(self, project_id: str, after: str, limit: int) -> Sequence[str]:
        """Returns agents of a project."""
        values = {"project": project_id, "after": after, "limit": limit}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            return [row.agent_id for row in await connection.execute(_AGENTS, values)]

    async def sweep(
        self,
        project_id: str,
        agent_id: str,
        before: datetime,
        cursor: Cursor | None,
        limit: int,
    ) -> SweepResult:
        """Deletes the deletable messages of one batch."""
        values = _batch(project_id, agent_id, before, cursor, limit)
        async with self._database.transaction(project_id=project_id) as connection:
            locked = [row.conversation_id for row in await connection.execute(_LOCK, values)]
            row = (await connection.execute(_SWEEP, {**values, "locked": locked})).one_or_none()
            if row is not None:
                await delete_unused_images(connection, project_id, row.images)
        return _swept(row, limit)

    async def sweep_turns(
        self,
        project_id: str,
        agent_id: str,
        before: datetime,
        cursor: Cursor | None,
        limit: int,
    ) -> SweepResult:
        """Deletes the deletable turns of one batch."""
        values = _batch(project_id, agent_id, before, cursor, limit)
        async with self._database.transaction(project_id=project_id) as connection:
            row = (await connection.execute(_SWEEP_TURNS, values)).one_or_none()
        return _swept(row, limit)


def _batch(
    project_id: str, agent_id: str, before: datetime, cursor: Cursor | None, limit: int
) -> dict[str, Any]:
    return {
        "project": project_id,
        "agent": agent_id,
        "before": before,
        "after_time": cursor[0] if cursor else _EPOCH,
        "after_id": cursor[1] if cursor else "",
        "limit": limit,
    }


def _swept(row: Row | None, limit: int) -> SweepResult:
    if row is None:
        return SweepResult(0, None)
    return SweepResult(row.deleted, (row.create_time, row.id) if row.examined == limit else None)


class DeletedMessages:
    """Deleted messages to remove from the index, over all projects.

    Args:
        worker: Connects with the worker role.
        settled_after: Maximum duration of a write to the index.
    """

    def __init__(self, worker: Database, settled_after: timedelta = timedelta(minutes=10)) -> None:
        self._worker = worker
        self._settled = settled_after

    async def find(self, limit: int) -> dict[str, list[str]]:
        """Returns ids of deleted messages to remove from the index, by project."""
        ids: dict[str, list[str]] = {}
        values = {"settled": self._settled, "limit": limit}
        for row in await self._worker.system_query(_FORGOTTEN, values):
            ids.setdefault(row.project_id, []).append(row.message_id)
        return ids

    async def done(self, project_id: str, ids: Sequence[str]) -> None:
        """Records that messages were removed from the index."""
        values = {"project": project_id, "ids": list(ids)}
        async with self._worker.system_transaction() as connection:
            await connection.execute(_SETTLED, {**values, "settled": self._settled})
            await connection.execute(_SWEPT, values)
