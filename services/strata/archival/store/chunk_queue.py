"""The queue of sets of chunks that wait for the indexer, over all projects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from strata.archival.domain.chunks import ChunkBatch, QueuedSet, SetState
from strata.archival.store.rows import chunk_columns, to_chunk
from strata.shared.db import Database, sql
from strata.shared.project_turns import ProjectRoundRobin, projects_in_turn
from strata.shared.search.indexing.indexer import MOST_COUNTED, IndexLag
from strata.shared.waiting_work import any_row_sql

DROPPED = "state = 'dropped', queue_time = 'epoch'"
"""SQL assignments that drop a set.

It comes before all sets that wait for an embedding: until it is removed from the index, its chunks
take the place of others in the results of searches.
"""
# In each project the longest waiting set first, but dropped sets before all. A claim holds an
# advisory lock until its transaction ends, at the latest with its process; other replicas skip the
# set. Candidates are chosen before the first lock is tried, so that only one lock is taken.
_WAITING = (
    "(state <> 'serving' OR indexed_count < chunk_count)"
    " AND (state <> 'staged' OR queue_time < now() - CAST(:abandoned AS interval))"
)
ABANDONED_AFTER = timedelta(hours=1)
"""Age without a new chunk after which an upload is dropped."""
ANY_WAITING_SET = any_row_sql("archival.chunk_sets", _WAITING)
"""SQL expression: whether a set waits for the indexer; with the parameter ``abandoned``."""
_CLAIM = sql(
    f"""
    WITH RECURSIVE {projects_in_turn("archival.chunk_sets", _WAITING)},
    waiting AS MATERIALIZED (
        SELECT in_turn.project_id, oldest.id, oldest.state, oldest.is_first
        FROM in_turn CROSS JOIN LATERAL (
            SELECT id, state, queue_time = 'epoch' AS is_first,
                   row_number() OVER (ORDER BY queue_time) AS place
            FROM archival.chunk_sets
            WHERE project_id = in_turn.project_id AND {_WAITING}
            ORDER BY queue_time LIMIT :tries) oldest
        ORDER BY oldest.is_first DESC, oldest.place, in_turn.turn LIMIT :tries
    )
    SELECT * FROM waiting WHERE pg_try_advisory_xact_lock(hashtextextended(id, 1)) LIMIT 1
    """
)
_NEXT = sql(
    f"""
    SELECT s.folder_id, s.file_id, {chunk_columns("c")}
    FROM archival.chunk_sets s JOIN archival.file_chunks c
      ON c.project_id = s.project_id AND c.set_id = s.id AND c.ordinal >= s.indexed_count
    WHERE s.project_id = :project AND s.id = :set AND s.state = 'serving'
    ORDER BY c.ordinal LIMIT :limit
    """
)
# Does not overwrite a reset for a new index that happened meanwhile.
_INDEXED = sql(
    """
    WITH noted AS (
        UPDATE archival.chunk_sets SET indexed_count = :after, queue_time = now()
        WHERE project_id = :project AND id = :set AND state = 'serving' AND indexed_count = :before
    )
    SELECT EXISTS (
        SELECT FROM archival.chunk_sets
        WHERE project_id = :project AND id = :set AND state = 'serving') AS serves
    """
)
_PUT_BACK = sql(
    "UPDATE archival.chunk_sets SET queue_time = now() WHERE project_id = :project AND id = :set"
)
_ABANDON = sql(
    f"UPDATE archival.chunk_sets SET {DROPPED} WHERE project_id = :project AND id = :set"
    " AND state = 'staged' AND queue_time < now() - CAST(:abandoned AS interval)"
)
# The foreign key deletes its remaining chunks.
_FORGET = sql(
    "DELETE FROM archival.chunk_sets"
    " WHERE project_id = :project AND id = :set AND state = 'dropped'"
)
_UNINDEXED = "state = 'serving' AND indexed_count < chunk_count"
_LAG = sql(
    f"""
    WITH RECURSIVE {projects_in_turn("archival.chunk_sets", _UNINDEXED)}
    SELECT (SELECT coalesce(sum(chunk_count - indexed_count), 0)::bigint FROM (
                SELECT chunk_count, indexed_count FROM archival.chunk_sets
                WHERE {_UNINDEXED} LIMIT :most) counted) AS waiting,
           coalesce(extract(epoch FROM now() - min(oldest.queue_time)), 0) AS seconds
    FROM in_turn CROSS JOIN LATERAL (
        SELECT queue_time FROM archival.chunk_sets
        WHERE project_id = in_turn.project_id AND {_UNINDEXED}
        ORDER BY queue_time LIMIT 1) oldest
    """
)
_ALL_AGAIN = sql("UPDATE archival.chunk_sets SET indexed_count = 0 WHERE indexed_count > 0")
_TRIES = 16


class ChunkQueue:
    """The queue of sets of chunks, for the indexer.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role, which sees ids and counts of all projects.
        abandoned_after: Age without a new chunk after which an upload is dropped.
    """

    def __init__(
        self,
        database: Database,
        worker: Database,
        abandoned_after: timedelta = ABANDONED_AFTER,
    ) -> None:
        self._database = database
        self._worker = worker
        self._abandoned = abandoned_after
        self._round_robin = ProjectRoundRobin()

    @asynccontextmanager
    async def claim(self) -> AsyncIterator[QueuedSet | None]:
        """Claims the longest waiting set of the project whose turn it is; None if there is none.

        Dropped sets come first, whose turn it may be. No other replica gets the set while the
        context is open.
        """
        async with self._worker.system_transaction(read_only=True) as connection:

            async def look(after: str) -> tuple[QueuedSet | None, str]:
                bound = {
                    "abandoned": self._abandoned,
                    "tries": _TRIES,
                    "after": after,
                    "projects": _TRIES,
                }
                row = (await connection.execute(_CLAIM, bound)).one_or_none()
                if row is None:
                    return None, ""
                queued = QueuedSet(row.project_id, row.id, SetState(row.state))
                return queued, after if row.is_first else row.project_id

            yield await self._round_robin.take(look)

    async def next(self, queued: QueuedSet, limit: int) -> ChunkBatch | None:
        """Returns the next chunks to index; None if there are no more."""
        values = {"project": queued.project_id, "set": queued.id, "limit": limit}
        async with self._database.transaction(
            project_id=queued.project_id, read_only=True
        ) as connection:
            rows = (await connection.execute(_NEXT, values)).all()
        if not rows:
            return None
        chunks = [to_chunk(row) for row in rows]
        return ChunkBatch(queued.id, rows[0].folder_id, rows[0].file_id, chunks)

    async def indexed(self, queued: QueuedSet, batch: ChunkBatch) -> bool:
        """Records that these chunks are indexed; the set goes to the end of the queue.

        Returns:
            Whether the set is still in use; otherwise it was dropped meanwhile.
        """
        values = {
            "project": queued.project_id,
            "set": queued.id,
            "before": batch.chunks[0].ordinal,
            "after": batch.chunks[-1].ordinal + 1,
        }
        async with self._database.transaction(project_id=queued.project_id) as connection:
            return bool((await connection.execute(_INDEXED, values)).scalar_one())

    async def put_back(self, queued: QueuedSet) -> None:
        """Moves a set to the end of the queue, so that its error does not block others."""
        async with self._database.transaction(project_id=queued.project_id) as connection:
            await connection.execute(_PUT_BACK, {"project": queued.project_id, "set": queued.id})

    async def abandon(self, queued: QueuedSet) -> None:
        """Drops a staged set whose upload was abandoned."""
        values = {"project": queued.project_id, "set": queued.id, "abandoned": self._abandoned}
        async with self._database.transaction(project_id=queued.project_id) as connection:
            await connection.execute(_ABANDON, values)

    async def delete_dropped(self, queued: QueuedSet) -> None:
        """Deletes a dropped set, after its chunks were removed from the index."""
        async with self._database.transaction(project_id=queued.project_id) as connection:
            await connection.execute(_FORGET, {"project": queued.project_id, "set": queued.id})

    async def lag(self) -> IndexLag:
        """Returns the lag of the index: chunks, and seconds since the oldest file's last step."""
        bound = {"after": "", "projects": MOST_COUNTED, "most": MOST_COUNTED}
        row = (await self._worker.system_query(_LAG, bound))[0]
        return IndexLag(min(row.waiting, MOST_COUNTED), max(0.0, float(row.seconds)))

    async def index_all_again(self) -> int:
        """Marks all chunks of all projects as not indexed; returns the number of sets."""
        async with self._worker.system_transaction() as connection:
            return int((await connection.execute(_ALL_AGAIN)).rowcount)
