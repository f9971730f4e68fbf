"""The queue of work on files, over all projects.

A worker claims an item for a limited time (a lease) and increases its attempt number. Every
write carries the attempt number. After another worker has taken over an expired lease,
writes with the old number match no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from strata.core_memory.files.domain.ports import IndexProgress
from strata.core_memory.files.store.contents import delete_orphan
from strata.shared.db import Database, SqlStatement, sql
from strata.shared.project_turns import ProjectRoundRobin, projects_in_turn
from strata.shared.waiting_work import WaitingWork, any_row_sql

# Number of candidates per claim: rows that other replicas have locked are skipped.
_TRIES = 8

_UNREAD = "state = 'stored'"
_UNSENT = "state = 'indexing' AND chunk_count = 0"
_UNINDEXED = "state = 'indexing' AND chunk_count > 0"
_DUE = "due_time <= clock_timestamp()"
_FREE = "(lease_until IS NULL OR lease_until < clock_timestamp())"


def _claim_of(table: str, key: str, waiting: str, since: str, returned: str) -> SqlStatement:
    """Returns the statement that claims the longest waiting row of the project in turn.

    Candidates are chosen before locks are taken, so that only one row is locked.
    """
    waiting = f"{waiting} AND {_FREE}"
    return sql(
        f"""
        WITH RECURSIVE {projects_in_turn(table, waiting)},
        candidates AS MATERIALIZED (
            SELECT in_turn.project_id, in_turn.turn, oldest.{key}, oldest.place
            FROM in_turn CROSS JOIN LATERAL (
                SELECT {key}, row_number() OVER (ORDER BY {since}) AS place FROM {table}
                WHERE project_id = in_turn.project_id AND {waiting}
                ORDER BY {since} LIMIT :tries) oldest
        )
        UPDATE {table} claimed
        SET lease_until = clock_timestamp() + make_interval(secs => :lease),
            attempts = claimed.attempts + 1
        FROM (
            SELECT project_id, {key} FROM {table} JOIN candidates USING (project_id, {key})
            WHERE {waiting}
            ORDER BY place, turn LIMIT 1 FOR UPDATE OF {table.rpartition(".")[2]} SKIP LOCKED
        ) chosen
        WHERE claimed.project_id = chosen.project_id AND claimed.{key} = chosen.{key}
        RETURNING {", ".join(f"claimed.{column}" for column in returned.split())}
        """
    )


_CLAIM_CONTENT = _claim_of(
    "core_memory.contents",
    "content_hash",
    _UNREAD,
    "create_time",
    "project_id content_hash attempts",
)
_HOLD_CONTENT = sql(
    """
    UPDATE core_memory.contents
    SET lease_until = clock_timestamp() + make_interval(secs => :lease)
    WHERE project_id = :project AND content_hash = :id AND state = 'stored' AND attempts = :attempt
    """
)
_RELEASE_CONTENT = sql(
    """
    UPDATE core_memory.contents SET lease_until = NULL, attempts = attempts - :uncounted
    WHERE project_id = :project AND content_hash = :id AND state = 'stored' AND attempts = :attempt
    """
)
_FORMAT = sql(
    "SELECT format, size_bytes FROM core_memory.contents"
    " WHERE project_id = :project AND content_hash = :id"
)
_NAME = sql(
    """
    SELECT f.name, c.format FROM core_memory.files f JOIN core_memory.contents c
      ON c.project_id = f.project_id AND c.content_hash = f.content_hash
    WHERE f.project_id = :project AND f.id = :id AND f.content_hash = :content
    """
)
# Files without chunks in the index; those with chunks wait for indexing, see _WAITING.
_CLAIM_FILE = _claim_of(
    "core_memory.files",
    "id",
    _UNSENT,
    "update_time",
    "project_id id folder_id content_hash attempts",
)
_HOLD_FILE = sql(
    """
    UPDATE core_memory.files
    SET lease_until = clock_timestamp() + make_interval(secs => :lease)
    WHERE project_id = :project AND id = :id AND content_hash = :content AND attempts = :attempt
      AND state = 'indexing'
    """
)
_SENT = sql(
    """
    UPDATE core_memory.files
    SET chunk_count = :chunks, indexed_count = 0, error = '', lease_until = NULL, attempts = 0,
        state = CASE WHEN :chunks = 0 THEN 'ready' ELSE state END,
        update_time = clock_timestamp()
    WHERE project_id = :project AND id = :id AND content_hash = :content AND attempts = :attempt
      AND state = 'indexing'
    """
)
# The file was replaced meanwhile, and the index may have its old chunks. If it was deleted, or its
# new content cannot be read, it may have been removed from the index before its chunks were sent by
# a process that was suspended.
_SEND_AGAIN = sql(
    """
    WITH queued AS (
        UPDATE core_memory.files
        SET chunk_count = 0, indexed_count = 0, lease_until = NULL,
            state = CASE WHEN state = 'ready' THEN 'indexing' ELSE state END
        WHERE project_id = :project AND id = :id AND state <> 'failed'
        RETURNING id
    )
    INSERT INTO core_memory.dropped_files AS d (project_id, id, due_time, keep_until)
    SELECT :project, :id, clock_timestamp(), clock_timestamp()
    WHERE NOT EXISTS (SELECT FROM queued)
    ON CONFLICT (project_id, id) DO UPDATE SET
        due_time = excluded.due_time, keep_until = greatest(d.keep_until, excluded.keep_until)
    """
)
# Unreadable files whose content was replaced while they were dropped from the index.
_RESTORE = sql(
    """
    UPDATE core_memory.files
    SET chunk_count = 0, indexed_count = 0, state = 'indexing', update_time = clock_timestamp()
    WHERE project_id = :project AND id = ANY(CAST(:ids AS text[]))
      AND state IN ('indexing', 'ready')
    """
)
_POSTPONE = sql(
    """
    UPDATE core_memory.files
    SET lease_until = clock_timestamp() + make_interval(secs => :pause), error = :error
    WHERE project_id = :project AND id = :id AND content_hash = :content AND attempts = :attempt
      AND state = 'indexing'
    """
)
_WAITING = sql(
    f"""
    SELECT project_id, id, content_hash FROM core_memory.files
    WHERE {_UNINDEXED}
      AND (project_id, id) > (CAST(:project AS text), CAST(:id AS text))
    ORDER BY project_id, id LIMIT :count
    """
)
_PROGRESS = sql(
    """
    UPDATE core_memory.files f
    SET chunk_count = d.chunks, indexed_count = d.indexed, lease_until = NULL,
        state = CASE WHEN d.chunks > 0 AND d.indexed >= d.chunks THEN 'ready' ELSE f.state END
    FROM unnest(CAST(:ids AS text[]), CAST(:contents AS text[]), CAST(:chunks AS int[]),
                CAST(:indexed AS int[])) AS d(id, content_hash, chunks, indexed)
    WHERE f.project_id = :project AND f.id = d.id AND f.content_hash = d.content_hash
      AND f.state = 'indexing' AND f.chunk_count > 0
      AND (f.chunk_count <> d.chunks OR f.indexed_count <> d.indexed OR d.indexed >= d.chunks)
    """
)
_UNINDEXABLE = sql(f"SELECT DISTINCT project_id FROM core_memory.files WHERE {_UNSENT}")
_EXPLAIN = sql(
    """
    UPDATE core_memory.files SET error = :error
    WHERE project_id = :project AND state = 'indexing' AND chunk_count = 0 AND error <> :error
    """
)
# Dropped once when due, and again when no worker can still be sending chunks.
_CLAIM_DROPPED = sql(
    f"""
    UPDATE core_memory.dropped_files d
    SET due_time = clock_timestamp() + make_interval(secs => :lease)
    FROM (
        SELECT project_id, id FROM core_memory.dropped_files WHERE {_DUE}
        ORDER BY due_time LIMIT :count FOR UPDATE SKIP LOCKED
    ) due
    WHERE d.project_id = due.project_id AND d.id = due.id
    RETURNING d.project_id, d.id, d.keep_until <= clock_timestamp() AS is_last
    """
)
# One that became due again meanwhile stays.
_DROPPED = sql(
    """
    WITH processed AS (
        SELECT * FROM unnest(CAST(:projects AS text[]), CAST(:ids AS text[]),
                             CAST(:last AS boolean[])) AS t(project_id, id, is_last)
    ), deleted AS (
        DELETE FROM core_memory.dropped_files d USING processed t
        WHERE d.project_id = t.project_id AND d.id = t.id AND t.is_last
          AND d.due_time > clock_timestamp()
    )
    UPDATE core_memory.dropped_files d SET due_time = d.keep_until FROM processed t
    WHERE d.project_id = t.project_id AND d.id = t.id AND NOT t.is_last
    """
)
_CLAIM_DROPPED_CONTENT = sql(
    f"""
    UPDATE core_memory.dropped_contents d
    SET due_time = clock_timestamp() + make_interval(secs => :lease)
    FROM (
        SELECT project_id, content_hash FROM core_memory.dropped_contents WHERE {_DUE}
        ORDER BY due_time LIMIT 1 FOR UPDATE SKIP LOCKED
    ) due
    WHERE d.project_id = due.project_id AND d.content_hash = due.content_hash
    RETURNING d.project_id, d.content_hash
    """
)
_DROPPED_CONTENT = sql(
    "DELETE FROM core_memory.dropped_contents"
    " WHERE project_id = :project AND content_hash = :content"
)
# Each part has up to a megabyte: one statement would not delete thousands of them in its time.
_PARTS_AT_ONCE = 100
_ABANDONED = sql(
    """
    DELETE FROM core_memory.content_parts p
    USING (
        SELECT project_id, content_hash, part FROM core_memory.content_parts
        WHERE content_hash LIKE 'upload-%'
          AND create_time < clock_timestamp() - make_interval(secs => :age)
        ORDER BY create_time LIMIT :count
    ) abandoned
    WHERE p.project_id = abandoned.project_id AND p.content_hash = abandoned.content_hash
      AND p.part = abandoned.part
    """
)


class FileWork(StrEnum):
    """A kind of work.

    Read a content, send chunks, follow their indexing, drop a file from the index, or delete a
    content.
    """

    READ = "read"
    SEND = "send"
    FOLLOW = "follow"
    DROP = "drop"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class ClaimedContent:
    """A content that is claimed for reading.

    Attributes:
        project_id: The project.
        content: The key of the content.
        attempt: The number of this attempt, from 1.
    """

    project_id: str
    content: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ClaimedFile:
    """A file that is claimed for sending its chunks to the index."""

    project_id: str
    file_id: str
    folder_id: str
    content: str
    attempt: int


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A file whose chunks were sent and are not all indexed yet."""

    project_id: str
    file_id: str
    content: str


@dataclass(frozen=True, slots=True)
class DroppedFile:
    """A file or folder to remove from the index; `is_last` if for the last time."""

    project_id: str
    id: str
    is_last: bool


class FileQueue:
    """Claims and completes work on files.

    Args:
        database: Connects with the database role of the service.
        worker: Connects with the worker role, which sees the queued work of all projects.
    """

    def __init__(self, database: Database, worker: Database) -> None:
        self._database = database
        self._worker = worker
        self._contents, self._files = ProjectRoundRobin(), ProjectRoundRobin()
        self._waiting_work = WaitingWork(
            worker,
            {
                FileWork.READ: any_row_sql("core_memory.contents", f"{_UNREAD} AND {_FREE}"),
                FileWork.SEND: any_row_sql("core_memory.files", f"{_UNSENT} AND {_FREE}"),
                FileWork.FOLLOW: any_row_sql("core_memory.files", _UNINDEXED),
                FileWork.DROP: any_row_sql("core_memory.dropped_files", _DUE, order="due_time"),
                FileWork.DELETE: any_row_sql(
                    "core_memory.dropped_contents", _DUE, order="due_time"
                ),
            },
        )

    async def find_work(self) -> frozenset[FileWork]:
        """Returns the kinds of work that may wait."""
        return await self._waiting_work.find()

    async def claim_content(self, lease: float) -> ClaimedContent | None:
        """Claims, for `lease` seconds, the longest waiting content of the project in turn."""
        row = await self._claim(_CLAIM_CONTENT, self._contents, lease)
        return ClaimedContent(row.project_id, row.content_hash, row.attempts) if row else None

    async def format_of(self, claim: ClaimedContent) -> tuple[str, int] | None:
        """Returns the format of a content and its size in bytes; None if it was deleted."""
        bound = {"project": claim.project_id, "id": claim.content}
        async with self._database.transaction(
            project_id=claim.project_id, read_only=True
        ) as connection:
            row = (await connection.execute(_FORMAT, bound)).first()
        return (row.format, row.size_bytes) if row else None

    async def hold_content(self, claim: ClaimedContent, lease: float) -> bool:
        """Renews the claim of a content; False if the claim is lost."""
        return await self._change(claim.project_id, _HOLD_CONTENT, **_key(claim), lease=lease)

    async def release_content(self, claim: ClaimedContent, *, counted: bool) -> None:
        """Releases the claim of a content; `counted` False takes the attempt back."""
        uncounted = 0 if counted else 1
        await self._change(claim.project_id, _RELEASE_CONTENT, **_key(claim), uncounted=uncounted)

    async def claim_file(self, lease: float) -> ClaimedFile | None:
        """Claims, for `lease` seconds, the longest waiting readable file of the project in turn."""
        row = await self._claim(_CLAIM_FILE, self._files, lease)
        if row is None:
            return None
        return ClaimedFile(row.project_id, row.id, row.folder_id, row.content_hash, row.attempts)

    async def hold_file(self, claim: ClaimedFile, lease: float) -> bool:
        """Renews the claim of a file; False if the claim is lost or the file was replaced."""
        return await self._change(claim.project_id, _HOLD_FILE, **_file_key(claim), lease=lease)

    async def name_of(self, claim: ClaimedFile) -> tuple[str, str]:
        """Returns the name of a file and its format; both are empty if it was deleted."""
        bound = {"project": claim.project_id, "id": claim.file_id, "content": claim.content}
        async with self._database.transaction(
            project_id=claim.project_id, read_only=True
        ) as connection:
            row = (await connection.execute(_NAME, bound)).first()
        return (row.name, row.format) if row else ("", "")

    async def sent(self, claim: ClaimedFile, chunks: int) -> None:
        """Records that the index has the chunks of a file.

        If the file was replaced or deleted meanwhile, see `send_again`.
        """
        if not await self._change(claim.project_id, _SENT, **_file_key(claim), chunks=chunks):
            await self.send_again(claim.project_id, claim.file_id)

    async def send_again(self, project_id: str, file_id: str) -> None:
        """Queues a file again, because the index may not have its chunks.

        If the file was deleted or cannot be read, its chunks are removed from the index again.
        """
        await self._change(project_id, _SEND_AGAIN, project=project_id, id=file_id)

    async def send_dropped_again(self, project_id: str, file_ids: Sequence[str]) -> None:
        """Queues those files again that exist and can be read, after their chunks were dropped."""
        await self._change(project_id, _RESTORE, project=project_id, ids=list(file_ids))

    async def postpone(self, claim: ClaimedFile, pause: float, error: str) -> None:
        """Postpones a file by `pause` seconds, and stores the error with it."""
        more = {"pause": pause, "error": error}
        await self._change(claim.project_id, _POSTPONE, **_file_key(claim), **more)

    async def waiting(self, after: tuple[str, str], count: int) -> list[WaitingFile]:
        """Returns files that wait for indexing, by project and id, after a pair of these."""
        bound = {"project": after[0], "id": after[1], "count": count}
        rows = await self._worker.system_query(_WAITING, bound)
        return [WaitingFile(row.project_id, row.id, row.content_hash) for row in rows]

    async def progress(
        self, project_id: str, files: Sequence[WaitingFile], progress: Mapping[str, IndexProgress]
    ) -> bool:
        """Stores the indexing progress of files; True if anything has changed."""
        files_with_progress = [
            (file, progress[file.file_id]) for file in files if file.file_id in progress
        ]
        if not files_with_progress:
            return False
        return await self._change(
            project_id,
            _PROGRESS,
            project=project_id,
            ids=[file.file_id for file, _ in files_with_progress],
            contents=[file.content for file, _ in files_with_progress],
            chunks=[file_progress.chunk_count for _, file_progress in files_with_progress],
            indexed=[file_progress.indexed_count for _, file_progress in files_with_progress],
        )

    async def explain(self, error: str) -> int:
        """Stores an error with every file that waits to be sent; returns the number of files."""
        projects = [row.project_id for row in await self._worker.system_query(_UNINDEXABLE)]
        count = 0
        for project in projects:
            async with self._database.transaction(project_id=project) as connection:
                bound = {"project": project, "error": error}
                count += (await connection.execute(_EXPLAIN, bound)).rowcount
        return count

    async def claim_dropped(self, lease: float, count: int) -> list[DroppedFile]:
        """Claims files and folders to remove from the index: deleted and unreadable ones."""
        values = {"lease": lease, "count": count}
        rows = await self._worker.system_execute(_CLAIM_DROPPED, values)
        return [DroppedFile(row.project_id, row.id, row.is_last) for row in rows]

    async def dropped(self, files: Sequence[DroppedFile]) -> None:
        """Records that files were removed from the index."""
        bound = {
            "projects": [file.project_id for file in files],
            "ids": [file.id for file in files],
            "last": [file.is_last for file in files],
        }
        async with self._worker.system_transaction() as connection:
            await connection.execute(_DROPPED, bound)

    async def delete_next_content(self, lease: float) -> bool:
        """Deletes a content that was queued when its last file was deleted; False if none waits.

        Args:
            lease: After how many seconds another process tries again if this one fails.
        """
        claim = (
            await self._worker.system_execute(_CLAIM_DROPPED_CONTENT, {"lease": lease})
        ).first()
        if claim is None:
            return False
        project, content = claim.project_id, claim.content_hash
        async with self._database.transaction(project_id=project) as connection:
            await delete_orphan(connection, project, content)
            await connection.execute(_DROPPED_CONTENT, {"project": project, "content": content})
        return True

    async def delete_abandoned_uploads(self, age: float) -> int:
        """Removes the parts of uploads that are older than `age` seconds; returns how many."""
        values = {"age": age, "count": _PARTS_AT_ONCE}
        total = 0
        while True:
            async with self._worker.system_transaction() as connection:
                deleted = int((await connection.execute(_ABANDONED, values)).rowcount)
            total += deleted
            if deleted < _PARTS_AT_ONCE:
                return total

    async def _claim(
        self, statement: SqlStatement, projects: ProjectRoundRobin, lease: float
    ) -> Any:
        async def look(after: str) -> tuple[Any, str]:
            bound = {"lease": lease, "after": after, "projects": _TRIES, "tries": _TRIES}
            row = (await self._worker.system_execute(statement, bound)).first()
            return row, row.project_id if row else ""

        return await projects.take(look)

    async def _change(self, project_id: str, statement: Any, **bound: Any) -> bool:
        async with self._database.transaction(project_id=project_id) as connection:
            return int((await connection.execute(statement, bound)).rowcount) > 0


def _key(claim: ClaimedContent) -> dict[str, Any]:
    return {"project": claim.project_id, "id": claim.content, "attempt": claim.attempt}


def _file_key(claim: ClaimedFile) -> dict[str, Any]:
    return {
        "project": claim.project_id,
        "id": claim.file_id,
        "content": claim.content,
        "attempt": claim.attempt,
    }
