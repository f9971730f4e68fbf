"""Uploads, folders and agents in tests of `FileService`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg

from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.shared.ids import new_id

MIB = 1024 * 1024
PDF = "application/pdf"


def upload_requests(
    folder_id: str, name: str, data: bytes = b"", *, chunk: int = MIB, **more: Any
) -> Iterator[pb.UploadFileRequest]:
    header = pb.UploadFileHeader(folder_id=folder_id, name=name, **more)
    yield pb.UploadFileRequest(header=header)
    for start in range(0, len(data), chunk):
        yield pb.UploadFileRequest(chunk=data[start : start + chunk])


async def upload(client: Any, folder_id: str, name: str, data: bytes = b"", **more: Any) -> pb.File:
    requests = upload_requests(folder_id, name, data, **more)
    file: pb.File = (await client.files.UploadFile(requests)).file
    return file


async def make_folder(client: Any, name: str = "notes", **more: Any) -> pb.Folder:
    response = await client.files.CreateFolder(pb.CreateFolderRequest(name=name, **more))
    folder: pb.Folder = response.folder
    return folder


async def make_agent(client: Any) -> str:
    agent_id = new_id("agent")
    await client.context.PrepareAgent(context_pb.PrepareAgentRequest(agent_id=agent_id))
    return agent_id


async def until_read(client: Any, file: pb.File) -> pb.File:
    """Waits until the text of a file has been read, or reading has failed."""
    request = pb.WatchFileRequest(file_id=file.id)
    async for response in client.files.WatchFile(request):
        if response.file.state != pb.FILE_STATE_PARSING:
            return response.file  # type: ignore[no-any-return]
    raise AssertionError("the stream ended")


async def rows(admin: asyncpg.Connection[Any], project: str) -> dict[str, int]:
    """Returns the number of rows of a project, by table of files; empty tables are omitted."""
    tables = ("files", "contents", "content_parts", "content_pages", "open_files")
    counts = {
        table: await admin.fetchval(
            f"SELECT count(*) FROM core_memory.{table} WHERE project_id = $1", project
        )
        for table in tables
    }
    return {table: count for table, count in counts.items() if count}
