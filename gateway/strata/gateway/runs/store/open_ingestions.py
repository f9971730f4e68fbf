"""Ingestions of files that follow the run of a memory agent, from its end until they are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from strata.shared.db import Database
from strata.shared.db.async_engine import AsyncConnection
from strata.shared.waiting_work import any_row_sql

_REPEAT_AFTER_S = 60.0

ANY_INGESTION_DUE = any_row_sql("gateway.open_ingestions", "due_time <= now()", order="due_time")
"""SQL expression: whether an ingestion is to be repeated."""
_BEGIN = text(
    """
    INSERT INTO gateway.open_ingestions (project_id, agent_id, run_id, due_time)
    VALUES (:project_id, :agent_id, :run_id, now() + make_interval(secs => :after_s))
        ON CONFLICT (project_id, agent_id) DO UPDATE
       SET run_id = excluded.run_id, due_time = excluded.due_time
    """
)
_END = text(
    """
    DELETE FROM gateway.open_ingestions
     WHERE project_id = :project_id AND agent_id = :agent_id AND run_id = :run_id
    """
)
_CLAIM = text(
    """
    WITH due AS (
        SELECT project_id, agent_id FROM gateway.open_ingestions WHERE due_time <= now()
        ORDER BY due_time LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE gateway.open_ingestions o SET due_time = now() + make_interval(secs => :after_s)
    FROM due WHERE o.project_id = due.project_id AND o.agent_id = due.agent_id
    RETURNING o.project_id, o.agent_id, o.run_id
    """
)


@dataclass(frozen=True, slots=True)
class OpenIngestion:
    """An ingestion that may not have been done.

    Attributes:
        project_id: The project.
        agent_id: The agent that has the files.
        run_id: The run of a memory agent after whose end it is done.
    """

    project_id: str
    agent_id: str
    run_id: str


async def begin_ingestion(
    connection: AsyncConnection, project_id: str, agent_id: str, run_id: str
) -> None:
    """Records that the files of an agent are to be ingested after a run.

    Part of the transaction that ends the run, so that no death of a gateway loses it.
    """
    values = {
        "project_id": project_id,
        "agent_id": agent_id,
        "run_id": run_id,
        "after_s": _REPEAT_AFTER_S,
    }
    await connection.execute(_BEGIN, values)


class PostgresOpenIngestions:
    """Reads and deletes these records.

    Args:
        database: Connections with the service role.
        worker: Connections with the worker role, which sees the records of all projects.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def end(self, one: OpenIngestion) -> None:
        """Records that an ingestion is done; one that follows a later run stays open."""
        values = {"project_id": one.project_id, "agent_id": one.agent_id, "run_id": one.run_id}
        await self._database.execute(_END, values, project_id=one.project_id)

    async def claim(self, limit: int, lease_s: float) -> Sequence[OpenIngestion]:
        """Returns ingestions that are to be repeated, and postpones them.

        Args:
            limit: Maximum number of ingestions.
            lease_s: Seconds until they are due again.
        """
        values = {"limit": limit, "after_s": lease_s}
        rows = await self._worker.system_execute(_CLAIM, values)
        return [OpenIngestion(row.project_id, row.agent_id, row.run_id) for row in rows]
