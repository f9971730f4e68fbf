"""The stores of folders and files over one database, with helpers of tests."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from gates import WAITING_SESSIONS
from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.ports import Unit
from strata.core_memory.files.domain.files import (
    PART_BYTES,
    File,
    Folder,
    NewFile,
    NewFolder,
)
from strata.core_memory.files.store.contents import ContentStore, TextPage
from strata.core_memory.files.store.files import PostgresFileStore
from strata.core_memory.files.store.folders import PostgresFolderStore
from strata.core_memory.files.store.uploads import PostgresUploadStore
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.shared.clock import SystemClock
from strata.shared.context import current_project
from strata.shared.db import Database, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id

TABLES = ("folders", "contents", "content_parts", "content_pages", "files", "dropped_files")
REMAINING_FILE = {"folders": 1, "contents": 1, "content_parts": 1, "files": 1}
NO_RECEIPT: Receipt[Any] = Receipt(RequestKey(), lambda _: b"")


class Stores:
    """All stores over one database, with helpers of tests."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.folders = PostgresFolderStore(database, SystemClock())
        self.files = PostgresFileStore(database)
        self.uploads = PostgresUploadStore(database, SystemClock())
        self.contents = ContentStore(database)

    async def folder(self, name: str = "notes", receipt: Any = NO_RECEIPT) -> Folder:
        return await self.folders.create(receipt, NewFolder(name, "what", "how"))

    async def upload(
        self,
        folder: Folder,
        name: str = "a.txt",
        data: bytes = b"hello\n",
        *,
        replacing: bool = False,
        receipt: Receipt[File] = NO_RECEIPT,
        lose: int = 0,
    ) -> File:
        upload, parts = new_id("upload"), 0
        for start in range(0, len(data), PART_BYTES):
            await self.uploads.put(upload, parts, data[start : start + PART_BYTES])
            parts += 1
        new = self.new_file(folder, name, data)
        new = replace(new, upload_id=upload, part_count=parts + lose, replace=replacing)
        try:
            return await self.uploads.finish(receipt, new)
        except BaseException:
            await self.uploads.discard(upload)
            raise

    def new_file(self, folder: Folder, name: str, data: bytes) -> NewFile:
        return NewFile(
            upload_id="",
            part_count=1,
            folder_id=folder.id,
            name=name,
            media_type="text/plain",
            format="text",
            content_key=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            replace=False,
        )

    async def is_waiting(self) -> bool:
        """Whether a session waits for a lock in this database."""
        async with self.database.transaction() as connection:
            return bool((await connection.execute(sql(WAITING_SESSIONS))).scalar_one())

    async def read(self, file: File, lines: str = "hello") -> None:
        count = len(lines.splitlines())
        page = TextPage(0, 1, count, lines)
        where = current_project(), file.content_key
        assert await self.contents.put_pages(*where, [page], attempt=0)
        assert await self.contents.readable(
            *where, attempt=0, line_count=count, char_count=len(lines)
        )

    async def got(self, file: File) -> File:
        stored = await self.files.get(file.id)
        assert stored is not None
        return stored

    async def revision(self, folder: Folder) -> int:
        statement = sql("SELECT revision FROM core_memory.folders WHERE id = :id")
        async with self.database.transaction() as connection:
            return int((await connection.execute(statement, {"id": folder.id})).scalar_one())

    async def counts(self) -> dict[str, int]:
        """Returns the number of rows of the project, by table; tables without rows are omitted."""
        async with self.database.transaction() as connection:
            counts = {
                table: (
                    await connection.execute(sql(f"SELECT count(*) FROM core_memory.{table}"))
                ).scalar_one()
                for table in TABLES
            }
        return {table: count for table, count in counts.items() if count}

    async def agent(self) -> str:
        agent_id = new_id("agent")

        async def begin(unit: Unit) -> bool:
            return await unit.begin_agent(agent_id)

        await PostgresBlockStore(self.database).mutate(RequestKey(), begin)
        return agent_id

    async def open(self, agent_id: str, file: File, start: int = 1, end: int = 0) -> None:
        statement = sql(
            "INSERT INTO core_memory.open_files"
            " VALUES (:project, :agent, :file, :start, :end, now())"
        )
        bound = {"agent": agent_id, "file": file.id, "start": start, "end": end}
        async with self.database.transaction() as connection:
            await connection.execute(statement, {"project": current_project(), **bound})


def receipt_of(request_id: str, digest: bytes = b"same") -> Receipt[Any]:
    return Receipt(RequestKey(request_id, digest.hex()), lambda made: made.id.encode())
