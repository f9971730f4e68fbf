"""Ingestions of files that are to be done, and stay recorded until they are done.

They follow the run of a memory agent, or the attachment of a folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.shared.db import Database, DatabaseConnection, sql
from strata.shared.waiting_work import any_row_sql

_REPEAT_AFTER_S = 60.0

ANY_INGESTION_DUE = any_row_sql("gateway.open_ingestions", "due_time <= now()", order="due_time")
"""SQL expression: whether an ingestion is to be repeated."""
_BEGIN = sql(
    """
    INSERT INTO gateway.open_ingestions (
           project_id, agent_id, run_id, principal, scopes, due_time)
    VALUES (:project_id, :agent_id, :cause_id, :principal, :scopes,
           now() + make_interval(secs => :after_s))
        ON CONFLICT (project_id, agent_id) DO UPDATE
       SET run_id = excluded.run_id, principal = excluded.principal, scopes = excluded.scopes,
           due_time = excluded.due_time
    """
)
_END = sql(
    """
    DELETE FROM gateway.open_ingestions
     WHERE project_id = :project_id AND agent_id = :agent_id AND run_id = :cause_id
    """
)
_CLAIM = sql(
    """
    WITH due AS (
        SELECT project_id, agent_id FROM gateway.open_ingestions WHERE due_time <= now()
        ORDER BY due_time LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE gateway.open_ingestions o SET due_time = now() + make_interval(secs => :after_s)
    FROM due WHERE o.project_id = due.project_id AND o.agent_id = due.agent_id
    RETURNING o.project_id, o.agent_id, o.run_id, o.principal, o.scopes
    """
)


@dataclass(frozen=True, slots=True)
class IngestionPrincipal:
    """The principal that attached a folder, and its scopes."""

    name: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class OpenIngestion:
    """An ingestion that may not have been done.

    Attributes:
        project_id: The project.
        agent_id: The agent that has the files.
        cause_id: The run of a memory agent after whose end it is done, or an id made for the
            attachment of a folder. A later cause replaces an earlier one.
        asked_by: Who attached the folder; None if the cause is a run.
    """

    project_id: str
    agent_id: str
    cause_id: str
    asked_by: IngestionPrincipal | None = None


async def begin_ingestion(
    connection: DatabaseConnection, project_id: str, agent_id: str, run_id: str
) -> None:
    """Records that the files of an agent are to be ingested after a run.

    Part of the transaction that ends the run, so that no death of a gateway loses it.
    """
    await connection.execute(_BEGIN, _values(OpenIngestion(project_id, agent_id, run_id)))


class PostgresOpenIngestions:
    """Reads and deletes these records.

    Args:
        database: Connections with the service role.
        worker: Connections with the worker role, which sees the records of all projects.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def begin(self, one: OpenIngestion) -> None:
        """Records that the files of an agent are to be ingested."""
        await self._database.execute(_BEGIN, _values(one), project_id=one.project_id)

    async def end(self, one: OpenIngestion) -> None:
        """Records that an ingestion is done; one with a later cause stays open."""
        values = {"project_id": one.project_id, "agent_id": one.agent_id, "cause_id": one.cause_id}
        await self._database.execute(_END, values, project_id=one.project_id)

    async def claim(self, limit: int, lease_s: float) -> Sequence[OpenIngestion]:
        """Returns ingestions that are to be repeated, and postpones them.

        Args:
            limit: Maximum number of ingestions.
            lease_s: Seconds until they are due again.
        """
        values = {"limit": limit, "after_s": lease_s}
        rows = await self._worker.system_execute(_CLAIM, values)
        return [
            OpenIngestion(
                row.project_id,
                row.agent_id,
                row.run_id,
                None
                if row.principal is None
                else IngestionPrincipal(row.principal, frozenset(row.scopes)),
            )
            for row in rows
        ]


def _values(one: OpenIngestion) -> dict[str, object]:
    asked_by = one.asked_by
    return {
        "project_id": one.project_id,
        "agent_id": one.agent_id,
        "cause_id": one.cause_id,
        "principal": asked_by and asked_by.name,
        "scopes": asked_by and sorted(asked_by.scopes),
        "after_s": _REPEAT_AFTER_S,
    }
