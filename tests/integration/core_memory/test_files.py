"""`FileService` over the service: folders, uploads, listings, deletions.

The archival service is absent in these tests: files work without an index.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.core_memory.settings import CoreMemorySettings
from strata.protocol.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)
from strata.shared.ids import new_id
from uploading import MIB, PDF, make_agent, make_folder, rows, until_read, upload, upload_requests

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_uploaded_file_is_read_immediately(client: Any) -> None:
    folder = await make_folder(client, "notes", description="what", instructions="how")
    file = await upload(client, folder.id, "a.md", b"# Title\n\nText\n", media_type="")
    assert (file.name, file.folder_id, file.media_type) == ("a.md", folder.id, "text/markdown")
    assert file.content_hash == hashlib.sha256(b"# Title\n\nText\n").hexdigest()
    read = await until_read(client, file)
    assert (read.state, read.line_count, read.size_bytes) == (pb.FILE_STATE_INDEXING, 3, 14)
    got = await client.files.GetFile(pb.GetFileRequest(file_id=file.id))
    assert (got.file.id, got.file.line_count) == (file.id, 3)
    listed = (await client.files.ListFolders(pb.ListFoldersRequest())).folders
    assert [(folder.name, folder.file_count) for folder in listed] == [("notes", 1)]
    assert (listed[0].description, listed[0].instructions) == ("what", "how")


@pytest.mark.parametrize("chunk", [1, 100, 65_536])
async def test_the_stored_file_does_not_depend_on_the_chunk_size_of_the_upload(
    client: Any, admin: Any, project: str, chunk: int
) -> None:
    folder = await make_folder(client)
    data = b"0123456789\n" * (20 if chunk == 1 else 200_000)
    file = await upload(client, folder.id, "a.txt", data, chunk=chunk)
    assert file.content_hash == hashlib.sha256(data).hexdigest()
    parts = await admin.fetch(
        "SELECT data FROM core_memory.content_parts WHERE project_id = $1 ORDER BY part", project
    )
    assert b"".join(part["data"] for part in parts) == data
    assert all(len(part["data"]) == MIB for part in parts[:-1])


async def test_an_upload_of_fifty_megabytes_needs_little_memory(client: Any) -> None:
    folder = await make_folder(client)
    line = b"A line of some text that is neither short nor long, with a number 0123456789.\n"
    chunk = (line * (MIB // len(line) + 1))[:MIB]

    def requests() -> Iterator[pb.UploadFileRequest]:
        yield from upload_requests(folder.id, "big.txt")
        for number in range(50):
            yield pb.UploadFileRequest(chunk=number.to_bytes(4).hex().encode() + chunk[8:])

    process, grown = psutil.Process(os.getpid()), 0
    await upload(client, folder.id, "small.txt", chunk)
    gc.collect()
    before = process.memory_info().rss

    async def measure() -> None:
        nonlocal grown
        while True:
            grown = max(grown, process.memory_info().rss - before)
            await asyncio.sleep(0.005)

    measuring = asyncio.create_task(measure())
    response = await client.files.UploadFile(requests())
    measuring.cancel()
    assert response.file.size_bytes == 50 * MIB
    # The whole file twice, held by sender and receiver, would be 100 MiB.
    assert grown < 60 * MIB


async def test_a_file_that_is_too_large_is_refused_and_leaves_nothing(
    client: Any, admin: Any, project: str, settings: CoreMemorySettings
) -> None:
    folder = await make_folder(client)
    chunk = b"x" * MIB

    def requests() -> Iterator[pb.UploadFileRequest]:
        yield from upload_requests(folder.id, "big.txt")
        for _ in range(settings.max_file_bytes // MIB + 1):
            yield pb.UploadFileRequest(chunk=chunk)

    with pytest.raises(ResourceExhaustedError) as refused:
        await client.files.UploadFile(requests())
    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE
    assert refused.value.metadata["limit_bytes"] == str(settings.max_file_bytes)
    assert await rows(admin, project) == {}


async def test_an_interrupted_upload_leaves_nothing(client: Any, admin: Any, project: str) -> None:
    folder = await make_folder(client)
    arrived = asyncio.Event()

    async def requests() -> AsyncIterator[pb.UploadFileRequest]:
        for request in upload_requests(folder.id, "a.txt", b"x" * 3 * MIB):
            yield request
        arrived.set()
        await asyncio.Event().wait()

    call = client.files.UploadFile(requests())
    await arrived.wait()
    async with asyncio.timeout(20):
        while (await rows(admin, project)).get("content_parts", 0) < 2:
            await asyncio.sleep(0.02)
    call.cancel()
    async with asyncio.timeout(20):
        while await rows(admin, project):
            await asyncio.sleep(0.02)
    listed = await client.files.ListFiles(pb.ListFilesRequest(folder_id=folder.id))
    assert not listed.files


async def test_the_same_bytes_are_stored_and_read_once(
    client: Any, admin: Any, project: str
) -> None:
    one, other = await make_folder(client, "one"), await make_folder(client, "other")
    data = b"line\n" * 300_000
    files = [await upload(client, folder.id, "a.txt", data) for folder in (one, other)]
    files.append(await upload(client, one.id, "b.txt", data))
    assert len({file.id for file in files}) == 3
    for file in files:
        assert (await until_read(client, file)).line_count == 300_000
    counts = await rows(admin, project)
    assert (counts["files"], counts["contents"], counts["content_parts"]) == (3, 1, 2)
    assert (
        await admin.fetchval(
            "SELECT attempts FROM core_memory.contents WHERE project_id = $1", project
        )
        == 1
    )


async def test_the_same_bytes_are_another_text_as_a_web_page(
    client: Any, admin: Any, project: str
) -> None:
    folder = await make_folder(client)
    data = b"<html><body><h1>Title</h1><p>Text</p></body></html>\n"
    page = await upload(client, folder.id, "a.html", data)
    source = await upload(client, folder.id, "a.txt", data)
    assert page.content_hash == source.content_hash == hashlib.sha256(data).hexdigest()
    for file in (page, source):
        await until_read(client, file)
    texts = await admin.fetch(
        "SELECT f.name, p.text FROM core_memory.files f JOIN core_memory.content_pages p"
        " USING (project_id, content_hash) WHERE f.project_id = $1 ORDER BY f.name",
        project,
    )
    by_name = {text["name"]: text["text"] for text in texts}
    assert by_name["a.txt"] == data.decode().rstrip("\n")
    assert "<h1>" not in by_name["a.html"]
    assert "Title" in by_name["a.html"]


async def test_a_file_is_replaced_only_on_request(client: Any, admin: Any, project: str) -> None:
    folder = await make_folder(client)
    first = await upload(client, folder.id, "a.txt", b"one\n")
    await until_read(client, first)
    with pytest.raises(AlreadyExistsError) as refused:
        await upload(client, folder.id, "a.txt", b"one\ntwo\n")
    assert refused.value.reason is Reason.NAME_TAKEN
    second = await upload(client, folder.id, "a.txt", b"one\ntwo\n", replace=True)
    assert second.id == first.id
    assert (await until_read(client, second)).line_count == 2
    counts = await rows(admin, project)
    assert counts == {"files": 1, "contents": 1, "content_parts": 1, "content_pages": 1}


async def test_a_repeated_upload_gets_the_first_answer(client: Any) -> None:
    folder, request = await make_folder(client), new_id("request")
    first = await upload(client, folder.id, "a.txt", b"one\n", request_id=request)
    await client.files.DeleteFile(pb.DeleteFileRequest(file_id=first.id))
    assert await upload(client, folder.id, "a.txt", b"one\n", request_id=request) == first
    with pytest.raises(AlreadyExistsError) as other_bytes:
        await upload(client, folder.id, "a.txt", b"two\n", request_id=request)
    assert other_bytes.value.reason is Reason.REQUEST_ID_REUSED
    with pytest.raises(AlreadyExistsError) as other_name:
        await upload(client, folder.id, "b.txt", b"one\n", request_id=request)
    assert other_name.value.reason is Reason.REQUEST_ID_REUSED


async def test_a_folder_has_one_answer_for_a_request(client: Any) -> None:
    request = new_id("request")
    first = await make_folder(client, "a", request_id=request)
    assert await make_folder(client, "a", request_id=request) == first
    with pytest.raises(AlreadyExistsError) as reused:
        await make_folder(client, "b", request_id=request)
    assert reused.value.reason is Reason.REQUEST_ID_REUSED
    with pytest.raises(AlreadyExistsError) as taken:
        await make_folder(client, "a")
    assert taken.value.reason is Reason.NAME_TAKEN


async def test_an_empty_file_has_no_lines(client: Any) -> None:
    folder = await make_folder(client)
    file = await upload(client, folder.id, "empty.txt")
    read = await until_read(client, file)
    assert (read.size_bytes, read.line_count) == (0, 0)
    assert read.state in (pb.FILE_STATE_INDEXING, pb.FILE_STATE_READY)


@pytest.mark.parametrize(
    ("name", "media_type", "data"),
    [
        ("picture.png", "image/png", b"\x89PNG\r\n\x1a\n" + b"\0" * 100),
        ("notes.txt", "text/plain", b"\x7fELF\x02\x01\x01" + b"\0" * 100),
        ("data.bin", "", b"a\0b\0\0\1" * 100),
        ("archive.zip", "application/zip", b"PK\x03\x04" + b"\0" * 100),
        ("letter.doc", "", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 100),
    ],
)
async def test_unreadable_input_is_refused_at_once(
    client: Any, admin: Any, project: str, name: str, media_type: str, data: bytes
) -> None:
    folder = await make_folder(client)
    with pytest.raises(InvalidArgumentError) as refused:
        await upload(client, folder.id, name, data * 40_000, media_type=media_type)
    assert "PDF and DOCX" in refused.value.message
    assert await rows(admin, project) == {}


@pytest.mark.parametrize(
    "name",
    ["", "a/b.txt", "/", "a\nb", "a\tb", "\x7f", "x" * 256, " a", "a ", "a\u2028b", "\x85x"],
)
async def test_names_that_cannot_be_shown_in_a_prompt_are_refused(client: Any, name: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await make_folder(client, name)
    assert refused.value.violations[0].field == "name"
    folder = await make_folder(client)
    with pytest.raises(InvalidArgumentError) as refused:
        await upload(client, folder.id, name, b"text")
    assert refused.value.violations[0].field == "header.name"


@pytest.mark.parametrize("name", ["x" * 255, "Bericht über Ä.txt", "日本語.md", 'a & <b> "c".txt'])
async def test_other_names_are_kept_as_they_are(client: Any, name: str) -> None:
    folder = await make_folder(client, name)
    assert folder.name == name
    assert (await upload(client, folder.id, name, b"text")).name == name


async def test_an_upload_is_a_header_and_then_chunks(client: Any, admin: Any, project: str) -> None:
    folder = await make_folder(client)
    header, chunk = (
        pb.UploadFileRequest(header=pb.UploadFileHeader(folder_id=folder.id, name="a.txt")),
        pb.UploadFileRequest(chunk=b"text"),
    )
    for wrong in (
        [],
        [chunk],
        [pb.UploadFileRequest()],
        [header, chunk, header],
        [header, pb.UploadFileRequest()],
        [header, pb.UploadFileRequest(chunk=b"x" * (MIB + 1))],
    ):
        with pytest.raises(InvalidArgumentError) as refused:
            await client.files.UploadFile(iter(wrong))
        assert refused.value.reason is Reason.INVALID_FIELD
    assert await rows(admin, project) == {}


async def test_missing_files_folders_and_agents_are_not_found(client: Any) -> None:
    agent, folder = await make_agent(client), await make_folder(client)
    calls = client.files
    nobody, nowhere, nothing = new_id("agent"), new_id("folder"), new_id("file")
    for call, request, reason in (
        (calls.GetFile, pb.GetFileRequest(file_id=nothing), Reason.FILE_NOT_FOUND),
        (calls.DeleteFile, pb.DeleteFileRequest(file_id=nothing), Reason.FILE_NOT_FOUND),
        (calls.DeleteFolder, pb.DeleteFolderRequest(folder_id=nowhere), Reason.FILE_NOT_FOUND),
        (
            calls.AttachFolder,
            pb.AttachFolderRequest(agent_id=agent, folder_id=nowhere),
            Reason.FILE_NOT_FOUND,
        ),
        (
            calls.AttachFolder,
            pb.AttachFolderRequest(agent_id=nobody, folder_id=folder.id),
            Reason.AGENT_NOT_FOUND,
        ),
        (
            calls.DetachFolder,
            pb.DetachFolderRequest(agent_id=nobody, folder_id=folder.id),
            Reason.AGENT_NOT_FOUND,
        ),
        (
            calls.OpenFiles,
            pb.OpenFilesRequest(agent_id=nobody, windows=[pb.FileWindow(file_name="notes/a.txt")]),
            Reason.AGENT_NOT_FOUND,
        ),
        (calls.CloseFiles, pb.CloseFilesRequest(agent_id=nobody), Reason.AGENT_NOT_FOUND),
    ):
        with pytest.raises(NotFoundError) as refused:
            await call(request)
        assert refused.value.reason is reason, request
    with pytest.raises(NotFoundError):
        await upload(client, nowhere, "a.txt", b"text")
    with pytest.raises(NotFoundError):
        await anext(aiter(calls.WatchFile(pb.WatchFileRequest(file_id=nothing))))


async def test_watch_sends_changes_until_the_file_is_deleted(client: Any) -> None:
    folder = await make_folder(client)
    file = await upload(client, folder.id, "a.txt", b"one\n")
    responses = aiter(client.files.WatchFile(pb.WatchFileRequest(file_id=file.id)))
    seen = [await anext(responses)]
    while seen[-1].file.state == pb.FILE_STATE_PARSING:
        seen.append(await anext(responses))
    assert seen[-1].file.line_count == 1
    await client.files.DeleteFile(pb.DeleteFileRequest(file_id=file.id))
    with pytest.raises(NotFoundError) as gone:
        await asyncio.wait_for(_rest(responses), 20)
    assert gone.value.reason is Reason.FILE_NOT_FOUND


async def _rest(responses: AsyncIterator[pb.WatchFileResponse]) -> None:
    async for _ in responses:
        pass


async def test_watching_ends_when_a_file_has_failed(client: Any) -> None:
    folder = await make_folder(client)
    file = await upload(client, folder.id, "a.pdf", b"%PDF-1.4 and nothing of the kind", chunk=5)
    states = [
        response.file
        async for response in client.files.WatchFile(pb.WatchFileRequest(file_id=file.id))
    ]
    assert states[-1].state == pb.FILE_STATE_FAILED
    assert states[-1].error
    assert states[-1].media_type == PDF
