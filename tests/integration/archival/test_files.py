"""`FileIndexService` as core memory calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from integration.archival.archival_calls import chunks, index, progress, search, sent
from integration.archival.conftest import PRINCIPAL, Client
from polling import eventually
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import file_index_service_pb2 as pb
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError, StrataError
from strata.shared.context import use
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def indexed(client: Client, file: str) -> None:
    async def holds() -> bool:
        seen = await progress(client, file)
        return seen is not None and seen[0] == seen[1]

    await eventually(holds)


async def test_a_file_is_stored_indexed_found_and_dropped(client: Client) -> None:
    folder, file = new_id("folder"), new_id("file")
    assert await index(client, folder, file, "The heron stands in the reeds.", "Rent is due.") == 2
    assert (await progress(client, file) or (0, 0))[1] == 2
    await indexed(client, file)
    hit = (await search(client, folder, "a tall bird near the water"))[0]
    assert (hit.file_id, hit.chunk) == (file, chunks("The heron stands in the reeds.")[0])
    dropped = await client.files.DropFiles(pb.DropFilesRequest(file_ids=[file, new_id("file")]))
    assert dropped.deleted_chunks == 2
    assert await search(client, folder, "a tall bird near the water") == []
    assert await progress(client, file) is None
    assert (await client.archives.ListArchives(archive_pb.ListArchivesRequest())).archives == []


async def test_an_empty_file_replaces_the_previous_text(client: Client) -> None:
    folder, file = new_id("folder"), new_id("file")
    await index(client, folder, file, "old words")
    assert await index(client, folder, file) == 0
    assert await progress(client, file) == (0, 0)
    assert await search(client, folder, "old words") == []


async def test_a_broken_stream_keeps_the_indexed_file(client: Client) -> None:
    folder, file = new_id("folder"), new_id("file")
    await index(client, folder, file, "the harbour at dawn")

    async def messages() -> AsyncIterator[pb.IndexFileRequest]:
        yield pb.IndexFileRequest(
            folder_id=folder,
            file_id=file,
            chunks=chunks(*(f"harbour {n}" for n in range(600))),
        )
        await asyncio.sleep(60)

    call = asyncio.ensure_future(client.files.IndexFile(messages(), timeout=1))
    with pytest.raises(StrataError):
        await call
    assert [hit.chunk.text for hit in await search(client, folder, "harbour", 50)] == [
        "the harbour at dawn"
    ]
    assert (await progress(client, file) or (0, 0))[1] == 1


F, G = new_id("folder"), new_id("file")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "file_id"),
        ([pb.IndexFileRequest(file_id=G)], "folder_id"),
        ([pb.IndexFileRequest(folder_id=F, file_id="file-1")], "file_id"),
        ([pb.IndexFileRequest(folder_id=F, file_id=G, chunks=chunks(" "))], "chunks[0].text"),
        ([pb.IndexFileRequest(folder_id=F, file_id=G, chunks=chunks("a\0"))], "chunks[0].text"),
        (
            [pb.IndexFileRequest(folder_id=F, file_id=G, chunks=chunks("a", first=1))],
            "chunks[0].ordinal",
        ),
        (
            [
                pb.IndexFileRequest(folder_id=F, file_id=G, chunks=chunks("a")),
                pb.IndexFileRequest(folder_id=F, file_id=G, chunks=chunks("a")),
            ],
            "chunks[0].ordinal",
        ),
        (
            [
                pb.IndexFileRequest(
                    folder_id=F,
                    file_id=G,
                    chunks=[pb.FileChunk(text="a", start_line=2, end_line=1)],
                )
            ],
            "chunks[0].end_line",
        ),
        (
            [
                pb.IndexFileRequest(folder_id=F, file_id=G),
                pb.IndexFileRequest(folder_id=F, file_id=new_id("file")),
            ],
            "file_id",
        ),
    ],
)
async def test_invalid_chunks_are_refused_and_nothing_is_stored(
    client: Client, messages: list[pb.IndexFileRequest], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await client.files.IndexFile(sent(messages))
    assert field in [violation.field for violation in caught.value.violations]
    assert await progress(client, G) is None


async def test_a_chunk_that_is_too_long_is_refused(client: Client) -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        await index(client, new_id("folder"), new_id("file"), "word " * 9_000)
    assert caught.value.metadata == {"limit": "8192", "tokens": "9002"}


async def test_searches_and_lists_are_checked(client: Client) -> None:
    many = [new_id("file") for _ in range(501)]
    folders = [new_id("folder") for _ in range(501)]
    for wrong in (
        client.files.GetFileProgress(pb.GetFileProgressRequest(file_ids=many)),
        client.files.GetFileProgress(pb.GetFileProgressRequest(file_ids=["x"])),
        client.files.DropFiles(pb.DropFilesRequest(folder_ids=[new_id("file")])),
        client.files.SearchFileChunks(pb.SearchFileChunksRequest(folder_ids=folders, query="a")),
        client.files.SearchFileChunks(pb.SearchFileChunksRequest(folder_ids=[F], query=" ")),
        client.files.SearchFileChunks(
            pb.SearchFileChunksRequest(folder_ids=[F], query="a", limit=-1)
        ),
    ):
        with pytest.raises(InvalidArgumentError):
            await wrong
    assert await search(client, new_id("folder"), "nothing there") == []


async def test_another_project_can_neither_find_nor_drop_files(client: Client) -> None:
    folder, file = new_id("folder"), new_id("file")
    await index(client, folder, file, "the treaty of the two rivers")
    await indexed(client, file)
    with use(client.keys.context(new_id("project"), principal=PRINCIPAL)):
        assert await search(client, folder, "treaty of the rivers") == []
        assert await progress(client, file) is None
        dropped = await client.files.DropFiles(pb.DropFilesRequest(folder_ids=[folder]))
        assert dropped.deleted_chunks == 0
    assert len(await search(client, folder, "treaty of the rivers")) == 1
