"""Round-robin over projects for queues in PostgreSQL that hold rows of all projects.

A project with 100,000 rows in a queue delays the single row of another project by one batch only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strata.shared.db import Database, sql

ResultT = TypeVar("ResultT")

# Projects that share a batch.
_PROJECTS = 16


def projects_in_turn(table: str, waiting: str) -> str:
    """Returns the common table expression ``in_turn (project_id, turn)``.

    It lists the projects that have waiting rows, in the order of their ids, numbered from 1. Use it
    after ``WITH RECURSIVE``. It skips from project to project in an index that leads with
    ``project_id``, so that its cost depends on the number of projects, not of rows. Parameters:
    ``after``, the project after which it begins, and ``projects``, the most projects to list.

    Args:
        table: The queue; it has a column ``project_id``.
        waiting: SQL condition of the waiting rows.
    """
    return f"""
    in_turn (project_id, turn) AS (
        (SELECT project_id, 1 FROM {table}
          WHERE ({waiting}) AND project_id > CAST(:after AS text) ORDER BY project_id LIMIT 1)
        UNION ALL
        SELECT following.project_id, in_turn.turn + 1
          FROM in_turn CROSS JOIN LATERAL (
               SELECT project_id FROM {table}
                WHERE ({waiting}) AND project_id > in_turn.project_id
                ORDER BY project_id LIMIT 1) following
         WHERE in_turn.turn < :projects
    )"""


class ProjectRoundRobin:
    """Serves projects in turn from a position in this process; each replica has its own."""

    def __init__(self) -> None:
        self._after = ""

    async def take(
        self, look: Callable[[str], Awaitable[tuple[ResultT | None, str]]]
    ) -> ResultT | None:
        """Takes work of the next projects.

        Args:
            look: Queries for work of the projects after an id. Returns the work, or None, and the
                last project that was served; empty to start again at the first project.
        """
        # Callers may overlap: another one changes the position during the query.
        begin = self._after
        work, after = await look(begin)
        if work is None and begin:
            work, after = await look("")
        self._after = after
        return work


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """Ids of waiting rows by project, and whether more rows may wait than were taken."""

    ids: Mapping[str, Sequence[str]]
    has_more: bool


class PendingInTurn:
    """Selects batches of a queue that contain rows of several projects.

    The projects share a batch equally. It takes the oldest and the newest rows of a project: new
    rows do not wait behind the project's own backlog, and the backlog still makes progress.

    Args:
        worker: Sees the queue of every project.
        table: The queue, with columns ``project_id`` and ``id``.
        waiting: SQL condition of the waiting rows.
        since: Column with the time since which a row waits.
    """

    def __init__(self, worker: Database, table: str, waiting: str, since: str) -> None:
        self._worker = worker
        self._round_robin = ProjectRoundRobin()

        def end(direction: str, limit: str) -> str:
            return f"""
            (SELECT id, row_number() OVER (ORDER BY {since} {direction}) AS place FROM {table}
              WHERE project_id = in_turn.project_id AND {waiting}
              ORDER BY {since} {direction} LIMIT :{limit})"""

        self._statement = sql(f"""
        WITH RECURSIVE {projects_in_turn(table, waiting)}
        SELECT in_turn.project_id, pending.id, in_turn.turn
          FROM in_turn CROSS JOIN LATERAL (
               {end("ASC", "oldest")} UNION ALL {end("DESC", "newest")}) pending
         GROUP BY in_turn.project_id, in_turn.turn, pending.id
         ORDER BY min(pending.place), in_turn.turn LIMIT :limit
        """)

        self._lag = sql(f"""
        WITH RECURSIVE {projects_in_turn(table, waiting)}
        SELECT (SELECT count(*) FROM (
                   SELECT FROM {table} WHERE {waiting} LIMIT :most) counted) AS waiting,
               coalesce(extract(epoch FROM now() - min(oldest.since)), 0) AS seconds
          FROM in_turn CROSS JOIN LATERAL (
               SELECT {since} AS since FROM {table}
                WHERE project_id = in_turn.project_id AND {waiting}
                ORDER BY {since} LIMIT 1) oldest
        """)

    async def lag(self, most: int) -> tuple[int, float]:
        """Returns how many rows wait, at most `most`, and the age of the oldest in seconds."""
        values = {"after": "", "projects": most, "most": most}
        row = (await self._worker.system_query(self._lag, values))[0]
        return row.waiting, max(0.0, float(row.seconds))

    async def find(self, limit: int) -> PendingBatch:
        """Returns the ids of at most `limit` rows, and moves on to the next projects."""
        # Each of them has a row in the batch.
        projects = min(_PROJECTS, max(1, limit // 2))

        async def look(after: str) -> tuple[PendingBatch | None, str]:
            values = {
                "after": after,
                "projects": projects,
                "limit": limit,
                "oldest": limit - limit // 2,
                "newest": limit // 2,
            }
            rows = await self._worker.system_query(self._statement, values)
            pending: dict[str, list[str]] = {}
            for row in rows:
                pending.setdefault(row.project_id, []).append(row.id)
            last = next((row.project_id for row in rows if row.turn == projects), "")
            if not pending:
                return None, last
            # Projects before `after` and after `last` were not looked at. Rows of the same time can
            # be both the oldest and the newest, so that half a batch may be all that was taken.
            has_more = bool(after or last) or len(rows) >= max(1, limit // 2)
            return PendingBatch(pending, has_more), last

        return await self._round_robin.take(look) or PendingBatch({}, has_more=False)
