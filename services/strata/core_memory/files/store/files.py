"""Stores files in PostgreSQL."""

from __future__ import annotations

from strata.core_memory.files.domain.files import File, OpenFile, file_not_found
from strata.core_memory.files.store.contents import drop_orphans
from strata.core_memory.files.store.rows import FILE, FILE_TABLES, to_file
from strata.shared.context import current_project
from strata.shared.db import Database, sql

_GET = sql(f"SELECT {FILE} FROM {FILE_TABLES} WHERE f.project_id = :project AND f.id = :file")
_LIST = sql(
    f"""
    SELECT {FILE} FROM {FILE_TABLES}
    WHERE f.project_id = :project AND f.folder_id = :folder AND f.name > :after
    ORDER BY f.name LIMIT :count
    """
)
_LIST_OF_AGENT = sql(
    f"""
    WITH page AS (
        SELECT d.name AS folder, n.id
        FROM core_memory.folder_attachments a
        JOIN core_memory.folders d ON d.project_id = a.project_id AND d.id = a.folder_id
        CROSS JOIN LATERAL (
            SELECT id, name FROM core_memory.files
            WHERE project_id = d.project_id AND folder_id = d.id
              AND (d.name > CAST(:after_folder AS text) OR name > CAST(:after AS text))
            ORDER BY name LIMIT :count) n
        WHERE a.project_id = :project AND a.agent_id = :agent
          AND d.name >= CAST(:after_folder AS text)
        ORDER BY d.name, n.name LIMIT :count
    )
    SELECT {FILE} FROM {FILE_TABLES} JOIN page ON page.id = f.id
    WHERE f.project_id = :project
    ORDER BY d.name, f.name
    """
)
_OPEN_OF_AGENT = sql(
    """
    SELECT o.file_id, d.name || '/' || f.name AS file_name, o.start_line,
           least(CASE WHEN o.end_line = 0 THEN c.line_count ELSE o.end_line END, c.line_count)
               AS end_line,
           o.last_access_time
    FROM core_memory.open_files o
    JOIN core_memory.files f ON f.project_id = o.project_id AND f.id = o.file_id
    JOIN core_memory.folders d ON d.project_id = f.project_id AND d.id = f.folder_id
    JOIN core_memory.contents c
      ON c.project_id = f.project_id AND c.content_hash = f.content_hash
    WHERE o.project_id = :project AND o.agent_id = :agent
    ORDER BY d.name, f.name
    """
)
_LOCK_FOLDER = sql(
    """
    SELECT id FROM core_memory.folders
    WHERE project_id = :project AND id = (
        SELECT folder_id FROM core_memory.files WHERE project_id = :project AND id = :file)
    FOR NO KEY UPDATE
    """
)
_DELETE = sql(
    """
    WITH deleted_file AS (
        DELETE FROM core_memory.files WHERE project_id = :project AND id = :file
        RETURNING folder_id, content_hash, lease_until
    ), dropped AS (
        INSERT INTO core_memory.dropped_files AS d (project_id, id, due_time, keep_until)
        SELECT :project, :file, clock_timestamp(), greatest(clock_timestamp(), lease_until)
        FROM deleted_file
        ON CONFLICT (project_id, id) DO UPDATE SET
            due_time = excluded.due_time, keep_until = greatest(d.keep_until, excluded.keep_until)
    ), folder AS (
        UPDATE core_memory.folders d
        SET revision = d.revision + 1, file_count = d.file_count - 1
        FROM deleted_file WHERE d.project_id = :project AND d.id = deleted_file.folder_id
    )
    SELECT content_hash FROM deleted_file
    """
)


class PostgresFileStore:
    """Files of the calling project; see `domain.ports.FileStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, file_id: str) -> File | None:
        """Returns a file; None if it does not exist."""
        rows = await self._database.query(_GET, file=file_id)
        return to_file(rows[0]) if rows else None

    async def of_folder(self, folder_id: str, after: str, count: int) -> list[File]:
        """Returns files of a folder by name, after a name."""
        rows = await self._database.query(_LIST, folder=folder_id, after=after, count=count)
        return [to_file(row) for row in rows]

    async def of_agent(self, agent_id: str, after: tuple[str, str], count: int) -> list[File]:
        """Returns files of an agent by folder and name, after a pair of these."""
        folder, name = after
        rows = await self._database.query(
            _LIST_OF_AGENT, agent=agent_id, after_folder=folder, after=name, count=count
        )
        return [to_file(row) for row in rows]

    async def open_of_agent(self, agent_id: str) -> list[OpenFile]:
        """Returns the windows that an agent has open, by name."""
        rows = await self._database.query(_OPEN_OF_AGENT, agent=agent_id)
        return [
            OpenFile(
                file_id=row.file_id,
                file_name=row.file_name,
                start_line=row.start_line,
                end_line=row.end_line,
                last_access_time=row.last_access_time,
            )
            for row in rows
        ]

    async def delete(self, file_id: str) -> None:
        """Deletes a file, and its content if no other file has it.

        Raises:
            NotFoundError: There is none (``FILE_NOT_FOUND``).
        """
        project = current_project()
        bound = {"project": project, "file": file_id}
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK_FOLDER, bound)
            content = (await connection.execute(_DELETE, bound)).scalar()
            if content is None:
                raise file_not_found(file_id)
            await drop_orphans(connection, project, [content])
