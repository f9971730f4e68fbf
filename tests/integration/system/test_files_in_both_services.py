"""The life of a file across services: core memory stores it, archival indexes and drops it."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from polling import eventually
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as pb_grpc
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = (
    b"The boiler in the cellar is serviced every October by Hansen & Sons.\n\n"
    b"Bread rises best overnight in the cold.\n\n"
    b"The spare key hangs behind the blue coat.\n"
)


def requests(
    folder_id: str, name: str, data: bytes, *, replace: bool = False
) -> Iterator[pb.UploadFileRequest]:
    header = pb.UploadFileHeader(folder_id=folder_id, name=name, replace=replace)
    yield pb.UploadFileRequest(header=header)
    yield pb.UploadFileRequest(chunk=data)


async def ready(files: pb_grpc.FileServiceStub, file_id: str) -> pb.File:
    last = pb.File()
    async for response in files.WatchFile(pb.WatchFileRequest(file_id=file_id)):
        last = response.file
    return last


async def test_a_file_is_found_by_meaning_until_it_is_deleted(system: System) -> None:
    files = pb_grpc.FileServiceStub(system.channel)
    agent = await system.make_agent()
    name = f"house {new_id('x')[-6:]}"
    folder = (await files.CreateFolder(pb.CreateFolderRequest(name=name))).folder
    attach = pb.AttachFolderRequest(agent_id=agent.id, folder_id=folder.id)
    await files.AttachFolder(attach)
    uploaded = (await files.UploadFile(requests(folder.id, "notes.txt", TEXT))).file
    file = await ready(files, uploaded.id)
    assert (file.state, file.error, file.index_progress) == (pb.FILE_STATE_READY, "", 1.0)

    async def search(query: str) -> pb.SearchFilesResponse:
        request = pb.SearchFilesRequest(agent_id=agent.id, query=query)
        response: pb.SearchFilesResponse = await files.SearchFiles(request)
        return response

    first = await search("When is the heating maintained?")
    assert first.unindexed_files == 0
    assert first.hits[0].file_name == f"{name}/notes.txt"
    assert "boiler" in first.hits[0].text

    other = TEXT.replace(b"boiler", b"furnace")
    replaced = (await files.UploadFile(requests(folder.id, "notes.txt", other, replace=True))).file
    assert replaced.id == file.id
    assert (await ready(files, file.id)).state == pb.FILE_STATE_READY
    assert "furnace" in (await search("When is the heating maintained?")).hits[0].text

    # The new content of the file cannot be read, and the old text does not belong to the file any
    # more.
    broken = b"%PDF-1.4 and nothing of the kind"
    await files.UploadFile(requests(folder.id, "notes.txt", broken, replace=True))
    assert (await ready(files, file.id)).state == pb.FILE_STATE_FAILED
    assert not (await search("When is the heating maintained?")).hits

    await files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    assert not (await search("When is the heating maintained?")).hits
    core_memory = await asyncpg.connect(system.urls["core_memory"].admin_url)
    archival = await asyncpg.connect(system.urls["archival"].admin_url)
    try:
        # The index is updated after the answer.
        await eventually(lambda: _drop_is_sent(core_memory, file.id))
        await eventually(lambda: _is_removed(archival, file.id))
    finally:
        await core_memory.close()
        await archival.close()


async def _drop_is_sent(connection: asyncpg.Connection, file_id: str) -> bool:
    count = await connection.fetchval(
        "SELECT count(*) FROM core_memory.dropped_files WHERE id = $1", file_id
    )
    return bool(count == 0)


async def _is_removed(connection: asyncpg.Connection, file_id: str) -> bool:
    count = await connection.fetchval(
        "SELECT count(*) FROM archival.chunk_sets WHERE file_id = $1", file_id
    )
    return bool(count == 0)
