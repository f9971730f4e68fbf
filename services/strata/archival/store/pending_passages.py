"""The passages that wait for the indexer, over all projects.

Another replica may still write a passage that it read before the passage was destroyed, and may be
killed before it notices. So tombstones are removed from the index at once, and again when no such
write can be running any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from strata.archival.domain.passages import Passage, SuppliedVector
from strata.archival.store.rows import PASSAGE_COLUMNS, to_passage
from strata.shared.db import Database, Row, sql
from strata.shared.project_turns import PendingBatch, PendingInTurn
from strata.shared.search.indexing.indexer import MOST_COUNTED, IndexLag
from strata.shared.waiting_work import any_row_sql

_PENDING = "indexed_revision < revision"
ANY_PENDING_PASSAGE = any_row_sql("archival.passages", _PENDING)
"""SQL expression: whether a passage waits for the indexer."""
_SETTLED = (
    "purge AND indexed_revision = revision AND update_time < now() - CAST(:settled AS interval)"
)
ANY_SETTLED_TOMBSTONE = any_row_sql("archival.passages", _SETTLED, order="update_time")
"""SQL expression: whether a tombstone is to be removed for the last time; see `SETTLED_AFTER`."""
_LAST_TIME = sql(
    f"""
    UPDATE archival.passages p SET indexed_revision = 0 FROM (
        SELECT project_id, id FROM archival.passages WHERE {_SETTLED}
        ORDER BY update_time LIMIT :limit FOR UPDATE SKIP LOCKED) settled
    WHERE p.project_id = settled.project_id AND p.id = settled.id
    """
)
SETTLED_AFTER = timedelta(minutes=10)
"""Maximum duration of a write to the index."""
_LOAD = sql(
    f"""
    SELECT {PASSAGE_COLUMNS}, v.model, v.vector FROM archival.passages p
    LEFT JOIN archival.passage_vectors v ON v.project_id = p.project_id AND v.passage_id = p.id
    WHERE p.project_id = :project AND p.id = ANY(CAST(:ids AS text[]))
    """
)
# A revision made while this one was indexed keeps the passage pending, even if another replica has
# indexed it meanwhile: this write may have overwritten that.
_DONE = sql(
    """
    WITH indexed AS (
        SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:revisions AS bigint[])) d(id, revision)
    ), deleted AS (
        DELETE FROM archival.passages p USING indexed
        WHERE p.project_id = :project AND p.id = indexed.id
          AND p.revision = indexed.revision AND p.purge
          AND p.update_time < now() - CAST(:settled AS interval)
    ), noted AS (
        UPDATE archival.passages p SET indexed_revision = indexed.revision FROM indexed
        WHERE p.project_id = :project AND p.id = indexed.id
          AND p.indexed_revision <> indexed.revision
          AND NOT (p.revision = indexed.revision AND p.purge
                   AND p.update_time < now() - CAST(:settled AS interval))
    )
    SELECT indexed.id FROM indexed
    LEFT JOIN archival.passages p ON p.project_id = :project AND p.id = indexed.id
    WHERE p.id IS NULL OR (p.purge AND p.revision <> indexed.revision)
    """
)
_ALL_AGAIN = sql("UPDATE archival.passages SET indexed_revision = 0 WHERE indexed_revision > 0")


class PendingPassages:
    """Reads and completes pending passages, for the indexer.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role, which sees ids and revisions of all projects.
        settled_after: Maximum duration of a write to the index.
    """

    def __init__(
        self, database: Database, worker: Database, settled_after: timedelta = SETTLED_AFTER
    ) -> None:
        self._settled = settled_after
        self._database = database
        self._worker = worker
        self._in_turn = PendingInTurn(worker, "archival.passages", _PENDING, "update_time")

    async def find(self, limit: int) -> PendingBatch:
        """Returns pending passages; projects take turns."""
        return await self._in_turn.find(limit)

    async def load(self, project_id: str, ids: Sequence[str]) -> list[Passage]:
        """Returns passages of a project, including deleted ones, with supplied vectors."""
        values = {"project": project_id, "ids": list(ids)}
        rows = await self._database.execute(_LOAD, values, project_id=project_id, read_only=True)
        return [_to_passage(row) for row in rows]

    async def done(self, project_id: str, passages: Sequence[Passage]) -> list[str]:
        """Records that these revisions are indexed; deletes the rows of settled tombstones.

        Returns:
            The ids of passages that were destroyed meanwhile.
        """
        values = {
            "project": project_id,
            "ids": [passage.id for passage in passages],
            "revisions": [passage.revision for passage in passages],
            "settled": self._settled,
        }
        rows = await self._database.execute(_DONE, values, project_id=project_id)
        return [row.id for row in rows]

    async def queue_settled(self, limit: int) -> int:
        """Queues settled tombstones, to be removed from the index again; returns their number."""
        values = {"limit": limit, "settled": self._settled}
        async with self._worker.system_transaction() as connection:
            return int((await connection.execute(_LAST_TIME, values)).rowcount)

    async def lag(self) -> IndexLag:
        """Returns the lag of the index."""
        return IndexLag(*await self._in_turn.lag(MOST_COUNTED))

    async def index_all_again(self) -> int:
        """Marks all passages of all projects as not indexed; returns their number."""
        async with self._worker.system_transaction() as connection:
            return int((await connection.execute(_ALL_AGAIN)).rowcount)


def _to_passage(row: Row) -> Passage:
    if row.vector is None:
        return to_passage(row)
    return replace(to_passage(row), vector=SuppliedVector(row.model, row.vector))
