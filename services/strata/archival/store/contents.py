"""Reads the contents of a collection for a rebuild, batch by batch in the order of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from strata.archival.domain.chunks import ChunkBatch
from strata.archival.store.rows import chunk_columns, to_chunk
from strata.shared.db import Database, sql

_COUNT = sql("SELECT count(*) FROM archival.passages")
_AFTER = sql(
    "SELECT project_id, id FROM archival.passages WHERE (project_id, id) > (:project, :id)"
    " ORDER BY project_id, id LIMIT :limit"
)
_OF_ARCHIVE = sql(
    """
    SELECT id, create_time FROM archival.passages
    WHERE project_id = :project AND archive_id = :archive AND NOT purge
      AND (create_time, id) > (:time, :id)
    ORDER BY create_time, id LIMIT :limit
    """
)
_OF_ARCHIVE_FIRST = sql(
    """
    SELECT id, create_time FROM archival.passages
    WHERE project_id = :project AND archive_id = :archive AND NOT purge
    ORDER BY create_time, id LIMIT :limit
    """
)
# Passages that changed after they were read become pending again, even if the indexer has
# written them: the batch may have overwritten that.
_CHANGED = sql(
    """
    WITH written AS (
        SELECT * FROM unnest(CAST(:ids AS text[]), CAST(:revisions AS bigint[])) w(id, revision)
    ), pending_again AS (
        UPDATE archival.passages p SET indexed_revision = 0 FROM written w
        WHERE p.project_id = :project AND p.id = w.id AND p.revision <> w.revision
          AND p.indexed_revision > 0
    )
    SELECT w.id FROM written w LEFT JOIN archival.passages p
      ON p.project_id = :project AND p.id = w.id
    WHERE p.id IS NULL OR p.deleted
    """
)
_COUNT_CHUNKS = sql(
    "SELECT coalesce(sum(chunk_count), 0) FROM archival.chunk_sets WHERE state = 'serving'"
)
_SET_AFTER = sql(
    """
    SELECT project_id, id FROM archival.chunk_sets
    WHERE (project_id, id) > (:project, :id) AND state = 'serving' AND chunk_count > 0
    ORDER BY project_id, id LIMIT 1
    """
)
_CHUNKS = sql(
    f"""
    SELECT s.folder_id, s.file_id, {chunk_columns("c")}
    FROM archival.chunk_sets s JOIN archival.file_chunks c
      ON c.project_id = s.project_id AND c.set_id = s.id
    WHERE s.project_id = :project AND s.id = :set AND s.state = 'serving' AND c.ordinal > :after
    ORDER BY c.ordinal LIMIT :limit
    """
)
_ONE_CHUNK = sql(
    f"""
    SELECT {chunk_columns("c")} FROM archival.chunk_sets s JOIN archival.file_chunks c
      ON c.project_id = s.project_id AND c.set_id = s.id
    WHERE s.project_id = :project AND s.id = :set AND s.state = 'serving' AND c.ordinal = :ordinal
    """
)
_SERVES = sql(
    "SELECT 1 FROM archival.chunk_sets"
    " WHERE project_id = :project AND id = :set AND state = 'serving'"
)

Key = tuple[str, str]


class PassageContents:
    """Reads passages in the order of a rebuild.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def count(self) -> int:
        """Returns the number of passages of all projects."""
        async with self._worker.system_transaction(read_only=True) as connection:
            return int((await connection.execute(_COUNT)).scalar_one())

    async def after(self, key: Key, limit: int) -> list[Key]:
        """Returns the next keys, all of one project; none at the end."""
        values = {"project": key[0], "id": key[1], "limit": limit}
        async with self._worker.system_transaction(read_only=True) as connection:
            rows = (await connection.execute(_AFTER, values)).all()
        return [(row.project_id, row.id) for row in rows if row.project_id == rows[0].project_id]

    async def of_archive(
        self, project_id: str, archive_id: str, cursor: Sequence[str], limit: int
    ) -> list[tuple[str, str]]:
        """Returns the next keys of an archive: time and id."""
        values = {"project": project_id, "archive": archive_id, "limit": limit}
        statement = _OF_ARCHIVE_FIRST
        if cursor:
            statement = _OF_ARCHIVE
            values |= {"time": datetime.fromisoformat(cursor[0]), "id": cursor[1]}
        async with self._database.transaction(project_id=project_id, read_only=True) as connection:
            rows = await connection.execute(statement, values)
            return [(row.create_time.isoformat(), row.id) for row in rows]

    async def changed(self, project_id: str, written: Mapping[str, int]) -> list[str]:
        """Marks passages that changed since a revision as pending; returns the deleted ones."""
        values = {
            "project": project_id,
            "ids": list(written),
            "revisions": list(written.values()),
        }
        async with self._database.transaction(project_id=project_id) as connection:
            return [row.id for row in await connection.execute(_CHANGED, values)]


class ChunkContents:
    """Reads chunks of files in the order of a rebuild.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker

    async def count(self) -> int:
        """Returns the number of chunks of all projects."""
        async with self._worker.system_transaction(read_only=True) as connection:
            return int((await connection.execute(_COUNT_CHUNKS)).scalar_one())

    async def set_after(self, key: Key) -> Key | None:
        """Returns project and id of the next set of chunks; None at the end."""
        values = {"project": key[0], "id": key[1]}
        async with self._worker.system_transaction(read_only=True) as connection:
            row = (await connection.execute(_SET_AFTER, values)).one_or_none()
        return None if row is None else (row.project_id, row.id)

    async def chunks(self, key: Key, after: int, limit: int) -> ChunkBatch | None:
        """Returns the chunks of a set after an ordinal; None if there are no more."""
        project, set_id = key
        values = {"project": project, "set": set_id, "after": after, "limit": limit}
        async with self._database.transaction(project_id=project, read_only=True) as connection:
            rows = (await connection.execute(_CHUNKS, values)).all()
        if not rows:
            return None
        chunks = [to_chunk(row) for row in rows]
        return ChunkBatch(set_id, rows[0].folder_id, rows[0].file_id, chunks)

    async def text(self, key: Key, ordinal: int) -> str | None:
        """Returns the indexed text of a chunk; None if its set no longer serves."""
        values = {"project": key[0], "set": key[1], "ordinal": ordinal}
        async with self._database.transaction(project_id=key[0], read_only=True) as connection:
            row = (await connection.execute(_ONE_CHUNK, values)).one_or_none()
        return None if row is None else to_chunk(row).indexed_text

    async def serves(self, key: Key) -> bool:
        """Returns whether a set is still in use."""
        async with self._database.transaction(project_id=key[0], read_only=True) as connection:
            result = await connection.execute(_SERVES, {"project": key[0], "set": key[1]})
            return result.one_or_none() is not None
