"""Stores folders and their attachments to agents in PostgreSQL."""

from __future__ import annotations

from typing import Any

from strata.core_memory.domain.blocks import agent_not_found
from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.files.domain.files import (
    Folder,
    NewFolder,
    folder_name_taken,
    folder_not_found,
)
from strata.core_memory.files.store.contents import drop_orphans
from strata.core_memory.files.store.rows import FOLDER, to_folder
from strata.core_memory.files.store.transactions import once
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.db import Database, DatabaseConnection, SqlStatement, sql
from strata.shared.ids import new_id

# Waits for a concurrent transaction that creates a folder of the same name.
_CREATE = sql(
    """
    INSERT INTO core_memory.folders
        (project_id, id, name, description, instructions, create_time)
    VALUES (:project, :folder, :name, :description, :instructions, :time)
    ON CONFLICT ON CONSTRAINT folders_name DO NOTHING
    """
)
_GET = sql(
    f"SELECT {FOLDER} FROM core_memory.folders d WHERE d.project_id = :project AND d.id = :folder"
)
_LIST = sql(
    f"""
    SELECT {FOLDER} FROM core_memory.folders d
    WHERE d.project_id = :project AND d.name > :after
    ORDER BY d.name LIMIT :count
    """
)
_LIST_OF_AGENT = sql(
    f"""
    SELECT {FOLDER} FROM core_memory.folder_attachments a
    JOIN core_memory.folders d ON d.project_id = a.project_id AND d.id = a.folder_id
    WHERE a.project_id = :project AND a.agent_id = :agent AND d.name > :after
    ORDER BY d.name LIMIT :count
    """
)
_LOCK_FOR_DELETION = sql(
    "SELECT id FROM core_memory.folders WHERE project_id = :project AND id = :folder FOR UPDATE"
)
_CONTENTS = sql(
    """
    SELECT DISTINCT content_hash FROM core_memory.files
    WHERE project_id = :project AND folder_id = :folder
    """
)
_DROP = sql(
    """
    INSERT INTO core_memory.dropped_files (project_id, id, due_time, keep_until)
    SELECT :project, :folder, clock_timestamp(),
           greatest(clock_timestamp(), max(lease_until))
    FROM core_memory.files WHERE project_id = :project AND folder_id = :folder
    """
)
_DELETE = sql("DELETE FROM core_memory.folders WHERE project_id = :project AND id = :folder")
# Locks the agent first, as all changes of its windows do, and the folder against deletion.
_LOCK_PAIR = sql(
    """
    WITH agent AS (
        SELECT agent_id FROM core_memory.prepared_agents
        WHERE project_id = :project AND agent_id = :agent FOR NO KEY UPDATE
    ), folder AS (
        SELECT * FROM core_memory.folders
        WHERE project_id = :project AND id = :folder FOR KEY SHARE
    )
    SELECT folder.*, agent.agent_id
    FROM (SELECT 1) AS one LEFT JOIN agent ON true LEFT JOIN folder ON true
    """
)
_ATTACH = sql(
    """
    INSERT INTO core_memory.folder_attachments (project_id, agent_id, folder_id)
    VALUES (:project, :agent, :folder) ON CONFLICT DO NOTHING
    """
)
_DETACH = sql(
    """
    DELETE FROM core_memory.folder_attachments
    WHERE project_id = :project AND agent_id = :agent AND folder_id = :folder
    """
)
_CLOSE = sql(
    """
    DELETE FROM core_memory.open_files o USING core_memory.files f
    WHERE o.project_id = :project AND o.agent_id = :agent
      AND f.project_id = o.project_id AND f.id = o.file_id AND f.folder_id = :folder
    """
)


class PostgresFolderStore:
    """Folders of the calling project; see `domain.ports.FolderStore`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(self, receipt: Receipt[Folder], folder: NewFolder) -> Folder:
        """Makes a folder.

        Raises:
            ReplayedError: The request was done before.
            AlreadyExistsError: ``NAME_TAKEN`` or ``REQUEST_ID_REUSED``.
        """
        folder_ = Folder(
            id=new_id("folder"),
            name=folder.name,
            description=folder.description,
            instructions=folder.instructions,
            file_count=0,
            create_time=self._clock.now(),
        )

        async def work(connection: DatabaseConnection) -> Folder:
            result = await connection.execute(_CREATE, _new_row(folder_))
            if result.rowcount == 0:
                raise folder_name_taken(folder_.name)
            return folder_

        return await once(self._database, receipt, work)

    async def of_project(self, after: str, count: int) -> list[Folder]:
        """Returns folders by name, after a name."""
        return await self._read(_LIST, after=after, count=count)

    async def of_agent(self, agent_id: str, after: str, count: int) -> list[Folder]:
        """Returns the folders attached to an agent by name, after a name."""
        return await self._read(_LIST_OF_AGENT, agent=agent_id, after=after, count=count)

    async def get(self, folder_id: str) -> Folder | None:
        """Returns a folder; None if it does not exist."""
        folders = await self._read(_GET, folder=folder_id)
        return folders[0] if folders else None

    async def delete(self, folder_id: str) -> None:
        """Deletes a folder with its files, and contents that no other file has.

        Raises:
            NotFoundError: There is none (``FILE_NOT_FOUND``).
        """
        bound = {"project": current_project(), "folder": folder_id}
        async with self._database.transaction() as connection:
            if (await connection.execute(_LOCK_FOR_DELETION, bound)).first() is None:
                raise folder_not_found(folder_id)
            contents = (await connection.execute(_CONTENTS, bound)).scalars()
            await connection.execute(_DROP, bound)
            await connection.execute(_DELETE, bound)
            await drop_orphans(connection, current_project(), contents)

    async def attach(self, agent_id: str, folder_id: str) -> Folder:
        """Attaches a folder to an agent, after its other folders; idempotent.

        Raises:
            NotFoundError: ``FILE_NOT_FOUND`` or ``AGENT_NOT_FOUND``.
        """
        return await self._change_pair(agent_id, folder_id, _ATTACH)

    async def detach(self, agent_id: str, folder_id: str) -> None:
        """Detaches a folder from an agent and closes its files; idempotent.

        Raises:
            NotFoundError: ``FILE_NOT_FOUND`` or ``AGENT_NOT_FOUND``.
        """
        await self._change_pair(agent_id, folder_id, _DETACH, _CLOSE)

    async def _change_pair(self, agent_id: str, folder_id: str, *changes: SqlStatement) -> Folder:
        bound = {"project": current_project(), "agent": agent_id, "folder": folder_id}
        async with self._database.transaction() as connection:
            row = (await connection.execute(_LOCK_PAIR, bound)).one()
            if row.agent_id is None:
                raise agent_not_found(agent_id)
            if row.id is None:
                raise folder_not_found(folder_id)
            for change in changes:
                await connection.execute(change, bound)
        return to_folder(row)

    async def _read(self, statement: SqlStatement, **parameters: Any) -> list[Folder]:
        bound = {"project": current_project(), **parameters}
        async with self._database.transaction(read_only=True) as connection:
            return [to_folder(row) for row in await connection.execute(statement, bound)]


def _new_row(folder: Folder) -> dict[str, Any]:
    return {
        "project": current_project(),
        "folder": folder.id,
        "name": folder.name,
        "description": folder.description,
        "instructions": folder.instructions,
        "time": folder.create_time,
    }
