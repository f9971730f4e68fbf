"""Stores uploads in PostgreSQL.

Each part of an upload is committed when it arrives, under the id of the upload, so that no
transaction or connection waits for a slow client. At the end one transaction makes the file, and
only changes the key of the parts. Parts of unfinished uploads are invisible. They are removed at
once or, if the process died, by the worker.
"""

from __future__ import annotations

from typing import Any

from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.files.domain.files import (
    File,
    NewFile,
    file_name_taken,
    folder_not_found,
)
from strata.core_memory.files.store.contents import drop_orphans
from strata.core_memory.files.store.rows import FILE, FILE_TABLES, to_file
from strata.core_memory.files.store.transactions import once
from strata.protocol.errors import UnavailableError
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, Row, sql
from strata.shared.ids import new_id

_PUT = sql(
    """
    INSERT INTO core_memory.content_parts (project_id, content_hash, part, data)
    VALUES (:project, :upload, :part, CAST(:data AS bytea))
    """
)
_DISCARD = sql(
    "DELETE FROM core_memory.content_parts WHERE project_id = :project AND content_hash = :upload"
)
_LOCK_FOLDER = sql(
    "SELECT id FROM core_memory.folders"
    " WHERE project_id = :project AND id = :folder FOR NO KEY UPDATE"
)
_NAMED = sql(
    """
    SELECT id, content_hash, state FROM core_memory.files
    WHERE project_id = :project AND folder_id = :folder AND name = :name FOR UPDATE
    """
)
# Both at once and in order, to exclude deadlocks.
_LOCK_CONTENTS = sql(
    """
    SELECT content_hash FROM core_memory.contents
    WHERE project_id = :project AND content_hash IN (:content, :old)
    ORDER BY content_hash FOR UPDATE
    """
)
# A content that could not be read is read again when it is uploaded again.
_CONTENT = sql(
    """
    INSERT INTO core_memory.contents AS c
        (project_id, content_hash, size_bytes, media_type, format, state, create_time)
    VALUES (:project, :content, :size, :media_type, :format, 'stored', :time)
    ON CONFLICT (project_id, content_hash) DO UPDATE SET
        state = CASE WHEN c.state = 'failed' THEN 'stored' ELSE c.state END,
        attempts = CASE WHEN c.state = 'failed' THEN 0 ELSE c.attempts END,
        error = ''
    RETURNING state, xmax = 0 AS is_new
    """
)
_KEEP = sql(
    """
    UPDATE core_memory.content_parts SET content_hash = :content
    WHERE project_id = :project AND content_hash = :upload
    """
)
_ADD = sql(
    """
    INSERT INTO core_memory.files
        (project_id, id, folder_id, name, media_type, content_hash, state, create_time, update_time)
    VALUES (:project, :file, :folder, :name, :media_type, :content, :state, :time, :time)
    """
)
# The lease stays, so that a worker that sends the old chunks is done before the new are sent. If
# the old content was unreadable, it need not be dropped from the index any more: the new chunks
# replace those that the index may have.
_REPLACE = sql(
    """
    WITH kept AS (
        DELETE FROM core_memory.dropped_files WHERE project_id = :project AND id = :file
    )
    UPDATE core_memory.files
    SET media_type = :media_type, content_hash = :content, state = :state, error = '',
        chunk_count = 0, indexed_count = 0, attempts = 0, create_time = :time, update_time = :time
    WHERE project_id = :project AND id = :file
    """
)
_COUNT = sql(
    """
    UPDATE core_memory.folders
    SET revision = revision + 1, file_count = file_count + CAST(:more AS integer)
    WHERE project_id = :project AND id = :folder
    """
)
_GET = sql(f"SELECT {FILE} FROM {FILE_TABLES} WHERE f.project_id = :project AND f.id = :file")


class PostgresUploadStore:
    """Uploads of the calling project; see `domain.ports.UploadStore`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def put(self, upload_id: str, part: int, data: bytes) -> None:
        """Stores one part."""
        bound = {"project": current_project(), "upload": upload_id, "part": part, "data": data}
        async with self._database.transaction() as connection:
            await connection.execute(_PUT, bound)

    async def discard(self, upload_id: str) -> None:
        """Removes the parts of an upload."""
        async with self._database.transaction() as connection:
            await connection.execute(_DISCARD, {"project": current_project(), "upload": upload_id})

    async def finish(self, receipt: Receipt[File], file: NewFile) -> File:
        """Makes a file of the parts, in one transaction.

        Raises:
            ReplayedError: The request was done before.
            NotFoundError: There is no such folder (``FILE_NOT_FOUND``).
            AlreadyExistsError: ``NAME_TAKEN`` or ``REQUEST_ID_REUSED``.
            UnavailableError: The upload took too long, and its parts were removed.
        """

        async def work(connection: DatabaseConnection) -> File:
            return await _Finish(connection, file, self._clock).run()

        return await once(self._database, receipt, work)


class _Finish:
    """The transaction that makes a file of an upload."""

    def __init__(self, connection: DatabaseConnection, file: NewFile, clock: Clock) -> None:
        self._connection = connection
        self._file = file
        self._bound = {
            "project": current_project(),
            "folder": file.folder_id,
            "name": file.name,
            "content": file.content_key,
            "upload": file.upload_id,
            "media_type": file.media_type,
            "format": file.format,
            "size": file.size_bytes,
            "time": clock.now(),
        }

    async def run(self) -> File:
        """Creates or replaces the file; returns the existing one if it is the same."""
        if (await self._run(_LOCK_FOLDER)).first() is None:
            raise folder_not_found(self._file.folder_id)
        old = (await self._run(_NAMED)).first()
        if old is None:
            file_id = new_id("file")
            await self._run(_ADD, file=file_id, state=await self._content(""))
        else:
            file_id = old.id
            if not await self._replace_content(old):
                return await self._made(file_id)
        await self._run(_COUNT, more=int(old is None))
        if old is not None and old.content_hash != self._file.content_key:
            await drop_orphans(self._connection, current_project(), [old.content_hash])
        return await self._made(file_id)

    async def _replace_content(self, old: Row) -> bool:
        """Replaces the content of an existing file; False if it is the same."""
        same = old.content_hash == self._file.content_key
        if same and old.state != "failed":
            await self._run(_DISCARD)
            return False
        if not (same or self._file.replace):
            raise file_name_taken(self._file.name)
        await self._run(_REPLACE, file=old.id, state=await self._content(old.content_hash))
        return True

    async def _content(self, old: str) -> str:
        """Stores the content if it is new, and returns the state of a file with it."""
        await self._run(_LOCK_CONTENTS, old=old)
        content = (await self._run(_CONTENT)).one()
        if not content.is_new:
            await self._run(_DISCARD)
        elif (await self._run(_KEEP)).rowcount != self._file.part_count:
            raise UnavailableError("The upload took too long; send the file again.")
        return "indexing" if content.state == "text" else "parsing"

    async def _made(self, file_id: str) -> File:
        return to_file((await self._run(_GET, file=file_id)).one())

    async def _run(self, statement: Any, **more: Any) -> Any:
        return await self._connection.execute(statement, {**self._bound, **more})
