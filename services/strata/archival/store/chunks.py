"""Stores chunks of files in PostgreSQL, from which the index is derived."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from strata.archival.domain.chunks import FileChunk, FileProgress, StoredChunk, split_key
from strata.archival.store.chunk_queue import DROPPED
from strata.archival.store.rows import (
    CHUNK_COLUMNS,
    NEW_CHUNKS,
    chunk_columns,
    chunk_values,
    to_chunk,
)
from strata.archival.store.words import query_sql, storable
from strata.protocol.errors import AbortedError, Reason
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, SqlStatement, sql
from strata.shared.ids import new_id
from strata.shared.search.result_merge import DatabaseSnapshot

_CHUNK = f"s.id AS set_id, s.file_id, {chunk_columns('c')}"
# Only chunks of serving sets are searched.
_SERVING = """
    archival.chunk_sets s JOIN archival.file_chunks c
        ON c.project_id = s.project_id AND c.set_id = s.id
"""
_IN_FOLDERS = """
    s.project_id = :project AND s.state = 'serving'
    AND s.folder_id = ANY(CAST(:folders AS text[]))
"""
# Maximum of matches that are ranked: ranking costs more than matching.
_MOST_RANKED = 20_000

_BEGIN = sql(
    "INSERT INTO archival.chunk_sets (project_id, id, folder_id, file_id, state)"
    " VALUES (:project, :set, :folder, :file, 'staged')"
)
# The lock on the set excludes a concurrent deletion of the file.
_ADD = sql(
    f"""
    WITH staged_set AS (
        UPDATE archival.chunk_sets SET queue_time = now()
        WHERE project_id = :project AND id = :set AND state = 'staged' RETURNING id
    )
    INSERT INTO archival.file_chunks (project_id, set_id, {CHUNK_COLUMNS})
    SELECT :project, staged_set.id, {chunk_columns("r")}
    FROM staged_set, unnest({NEW_CHUNKS}) r({CHUNK_COLUMNS})
    """
)
# Serialises the replacements of one file's set.
_LOCK_FILE = sql(
    """
    SELECT pg_advisory_xact_lock(hashtextextended(:project || '/' || file_id, 0))
    FROM archival.chunk_sets WHERE project_id = :project AND id = :set
    """
)
_SAME = sql(
    """
    SELECT 1 FROM archival.chunk_sets old JOIN archival.chunk_sets new
        ON new.project_id = old.project_id AND new.file_id = old.file_id
    WHERE old.project_id = :project AND new.id = :set AND new.state = 'staged'
      AND old.state = 'serving' AND old.digest = :digest AND old.folder_id = new.folder_id
    """
)
_RETIRE = sql(
    f"""
    UPDATE archival.chunk_sets old SET {DROPPED}
    FROM archival.chunk_sets new
    WHERE new.project_id = :project AND new.id = :set AND new.state = 'staged'
      AND old.project_id = :project AND old.file_id = new.file_id AND old.state = 'serving'
    RETURNING old.id
    """
)
_SERVE = sql(
    """
    UPDATE archival.chunk_sets
    SET state = 'serving', chunk_count = :count, digest = :digest, queue_time = now()
    WHERE project_id = :project AND id = :set AND state = 'staged'
    """
)
_DISCARD = sql(
    f"UPDATE archival.chunk_sets SET {DROPPED}"
    " WHERE project_id = :project AND id = :set AND state = 'staged' RETURNING id"
)
# A folder may have millions of chunks, which one statement would not delete in its time.
_DROPPED_AT_ONCE = 20
# Locked in the order of their ids, as in a replacement; ids sort by creation.
_DROP = sql(
    f"""
    WITH dropped_sets AS (
        SELECT id FROM archival.chunk_sets
        WHERE project_id = :project AND state <> 'dropped'
          AND (file_id = ANY(CAST(:files AS text[])) OR folder_id = ANY(CAST(:folders AS text[])))
        ORDER BY id LIMIT :limit FOR UPDATE
    )
    UPDATE archival.chunk_sets s SET {DROPPED}
    FROM dropped_sets WHERE s.project_id = :project AND s.id = dropped_sets.id RETURNING s.id
    """
)
# Texts are deleted at once; the set stays until it is removed from the index.
_DELETE_CHUNKS = sql(
    "DELETE FROM archival.file_chunks"
    " WHERE project_id = :project AND set_id = ANY(CAST(:sets AS text[]))"
)
_PROGRESS = sql(
    """
    SELECT file_id, chunk_count, indexed_count FROM archival.chunk_sets
    WHERE project_id = :project AND state = 'serving' AND file_id = ANY(CAST(:files AS text[]))
    ORDER BY file_id
    """
)


_BY_KEYS = sql(
    f"""
    SELECT {_CHUNK}
    FROM unnest(CAST(:sets AS text[]), CAST(:ordinals AS integer[])) k(set_id, ordinal),
         {_SERVING}
    WHERE {_IN_FOLDERS} AND s.id = k.set_id AND c.ordinal = k.ordinal
    """
)


def _by_words_sql(where: str) -> str:
    return f"""
        WITH search AS ({query_sql("english")}), matches AS (
            SELECT {_CHUNK}, c.search_vector, search.query
            FROM search, {_SERVING}
            WHERE {_IN_FOLDERS} {where} AND c.search_vector @@ search.query
            LIMIT {_MOST_RANKED}
        )
        SELECT set_id, file_id, {CHUNK_COLUMNS},
               CAST(ts_rank_cd(search_vector, query) AS float8) AS rank
        FROM matches ORDER BY rank DESC, set_id, ordinal LIMIT :limit
    """


_BY_ALL_WORDS = sql(_by_words_sql(""))
_BY_WAITING_WORDS = sql(
    _by_words_sql("AND s.indexed_count < s.chunk_count AND c.ordinal >= s.indexed_count")
)


class PostgresFileChunkStore:
    """Implements `FileChunkStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, folder_id: str, file_id: str) -> str:
        """Creates a staged set."""
        set_id = new_id("chunks")
        async with self._database.transaction() as connection:
            await connection.execute(_BEGIN, {**_of(set_id), "folder": folder_id, "file": file_id})
        return set_id

    async def add(self, set_id: str, chunks: Sequence[FileChunk]) -> None:
        """Stores chunks of a staged set."""
        async with self._database.transaction() as connection:
            added = await connection.execute(_ADD, {**_of(set_id), **chunk_values(chunks)})
            if added.rowcount != len(chunks):
                raise _dropped()

    async def serve(self, set_id: str, chunk_count: int, digest: str) -> None:
        """Makes a staged set replace the file's previous one."""
        values = {**_of(set_id), "count": chunk_count, "digest": digest}
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK_FILE, values)
            if (await connection.execute(_SAME, values)).first() is not None:
                await self._discard(connection, set_id)
                return
            retired = [row.id for row in await connection.execute(_RETIRE, values)]
            if retired:
                await _delete_chunks(connection, retired)
            if not (await connection.execute(_SERVE, values)).rowcount:
                raise _dropped()

    async def discard(self, set_id: str) -> None:
        """Drops a staged set."""
        async with self._database.transaction() as connection:
            await self._discard(connection, set_id)

    async def progress(self, file_ids: Sequence[str]) -> list[FileProgress]:
        """Returns the progress of files."""
        values = {"project": current_project(), "files": list(file_ids)}
        async with self._database.transaction(read_only=True) as connection:
            rows = await connection.execute(_PROGRESS, values)
            return [FileProgress(row.file_id, row.chunk_count, row.indexed_count) for row in rows]

    async def drop(self, file_ids: Sequence[str], folder_ids: Sequence[str]) -> int:
        """Deletes the chunks of files and folders, a few files per transaction."""
        values = {
            "limit": _DROPPED_AT_ONCE,
            "project": current_project(),
            "files": list(file_ids),
            "folders": list(folder_ids),
        }
        total = 0
        while True:
            async with self._database.transaction() as connection:
                dropped = [row.id for row in await connection.execute(_DROP, values)]
                total += await _delete_chunks(connection, dropped) if dropped else 0
            if len(dropped) < _DROPPED_AT_ONCE:
                return total

    @asynccontextmanager
    async def open_snapshot(
        self, words: str, folder_ids: Sequence[str], limit: int, *, all_words: bool = False
    ) -> AsyncIterator[DatabaseSnapshot[StoredChunk]]:
        """Opens a snapshot of the folders' chunks."""
        async with self._database.transaction(snapshot=True, generic_plan=True) as connection:
            statement = _BY_ALL_WORDS if all_words else _BY_WAITING_WORDS
            yield _Snapshot(connection, statement, words, folder_ids, limit)

    async def by_words(
        self, words: str, folder_ids: Sequence[str], limit: int
    ) -> list[tuple[StoredChunk, float]]:
        """Returns chunks by words."""
        async with self._database.transaction(read_only=True) as connection:
            return await _find(connection, _BY_ALL_WORDS, words, folder_ids, limit)

    async def _discard(self, connection: DatabaseConnection, set_id: str) -> None:
        chunk_ids = [row.id for row in await connection.execute(_DISCARD, _of(set_id))]
        if chunk_ids:
            await _delete_chunks(connection, chunk_ids)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Implements `DatabaseSnapshot`."""

    connection: DatabaseConnection
    statement: SqlStatement
    words: str
    folder_ids: Sequence[str]
    limit: int

    async def waiting(self) -> list[tuple[StoredChunk, float]]:
        """Searches pending chunks by words, or all chunks if the index lacks a word."""
        return await _find(self.connection, self.statement, self.words, self.folder_ids, self.limit)

    async def by_ids(self, ids: Sequence[str]) -> dict[str, StoredChunk]:
        """Returns chunks by key."""
        pairs = [split_key(key) for key in ids]
        values = {
            "project": current_project(),
            "folders": list(self.folder_ids),
            "sets": [set_id for set_id, _ in pairs],
            "ordinals": [ordinal for _, ordinal in pairs],
        }
        chunks = [_to_stored_chunk(row) for row in await self.connection.execute(_BY_KEYS, values)]
        return {stored.key: stored for stored in chunks}


async def _find(
    connection: DatabaseConnection,
    statement: SqlStatement,
    words: str,
    folder_ids: Sequence[str],
    limit: int,
) -> list[tuple[StoredChunk, float]]:
    values = {
        "project": current_project(),
        "folders": list(folder_ids),
        "words": storable(words),
        "limit": limit,
    }
    rows = (await connection.execute(statement, values)).all()
    return [(_to_stored_chunk(row), row.rank) for row in rows]


async def _delete_chunks(connection: DatabaseConnection, set_ids: Sequence[str]) -> int:
    deleted = await connection.execute(
        _DELETE_CHUNKS, {"project": current_project(), "sets": list(set_ids)}
    )
    return int(deleted.rowcount)


def _of(set_id: str) -> dict[str, Any]:
    return {"project": current_project(), "set": set_id}


def _to_stored_chunk(row: Row) -> StoredChunk:
    return StoredChunk(row.set_id, row.file_id, to_chunk(row))


def _dropped() -> AbortedError:
    return AbortedError(
        "The file was deleted while its chunks were uploaded.", reason=Reason.EDIT_CONFLICT
    )
