"""`FileService` over the room: folders, uploads, listings, deletions.

The archival room is not there in these tests: what needs no index works without it.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psutil
import pytest

from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.core_memory.settings import CoreMemorySettings
from strata.shared.context import use
from strata.shared.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
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
    """Waits until the text of a file is there, or it has failed."""
    request = pb.WatchFileRequest(file_id=file.id)
    async for response in client.files.WatchFile(request):
        if response.file.state != pb.FILE_STATE_PARSING:
            return response.file  # type: ignore[no-any-return]
    raise AssertionError("the stream ended")


@pytest.fixture
async def admin(urls: Any) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(urls.admin_url)
    yield connection
    await connection.close()


async def rows(admin: asyncpg.Connection[Any], project: str) -> dict[str, int]:
    """Rows of a project in the tables of files, without the tables that have none."""
    tables = ("files", "contents", "content_parts", "content_pages", "open_files")
    counts = {
        table: await admin.fetchval(
            f"SELECT count(*) FROM core_memory.{table} WHERE project_id = $1", project
        )
        for table in tables
    }
    return {table: count for table, count in counts.items() if count}


async def test_a_file_is_read_as_soon_as_it_is_there(client: Any) -> None:
    folder = await make_folder(client, "notes", description="what", instructions="how")
    file = await upload(client, folder.id, "a.md", b"# Title\n\nText\n", media_type="")
    assert (file.name, file.folder_id, file.media_type) == ("a.md", folder.id, "text/markdown")
    assert file.content_hash == hashlib.sha256(b"# Title\n\nText\n").hexdigest()
    read = await until_read(client, file)
    assert (read.state, read.line_count, read.size_bytes) == (pb.FILE_STATE_INDEXING, 3, 14)
    got = await client.files.GetFile(pb.GetFileRequest(file_id=file.id))
    assert (got.file.id, got.file.line_count) == (file.id, 3)
    listed = (await client.files.ListFolders(pb.ListFoldersRequest())).folders
    assert [(each.name, each.file_count) for each in listed] == [("notes", 1)]
    assert (listed[0].description, listed[0].instructions) == ("what", "how")


@pytest.mark.parametrize("chunk", [1, 100, 65_536])
async def test_how_the_bytes_are_cut_makes_no_difference(
    client: Any, admin: Any, project: str, chunk: int
) -> None:
    folder = await make_folder(client)
    data = b"0123456789\n" * (20 if chunk == 1 else 200_000)
    file = await upload(client, folder.id, "a.txt", data, chunk=chunk)
    assert file.content_hash == hashlib.sha256(data).hexdigest()
    parts = await admin.fetch(
        "SELECT data FROM core_memory.content_parts WHERE project_id = $1 ORDER BY part", project
    )
    assert b"".join(each["data"] for each in parts) == data
    assert all(len(each["data"]) == MIB for each in parts[:-1])


async def test_fifty_megabytes_come_in_without_being_held(client: Any) -> None:
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
    # The whole file twice, as sender and receiver would hold it, would be 100 MiB.
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


async def test_an_upload_that_breaks_off_leaves_nothing(
    client: Any, admin: Any, project: str
) -> None:
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
    found = {each["name"]: each["text"] for each in texts}
    assert found["a.txt"] == data.decode().rstrip("\n")
    assert "<h1>" not in found["a.html"]
    assert "Title" in found["a.html"]


async def test_a_file_is_replaced_only_when_it_is_asked_for(
    client: Any, admin: Any, project: str
) -> None:
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


async def test_an_upload_has_one_answer_for_a_request(client: Any) -> None:
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
async def test_what_cannot_be_read_is_refused_at_once(
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
async def test_names_that_a_prompt_cannot_show_are_refused(client: Any, name: str) -> None:
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


async def test_what_is_not_there_is_not_found(client: Any) -> None:
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
    ):
        with pytest.raises(NotFoundError) as refused:
            await call(request)
        assert refused.value.reason is reason, request
    with pytest.raises(NotFoundError):
        await upload(client, nowhere, "a.txt", b"text")
    with pytest.raises(NotFoundError):
        await anext(aiter(calls.WatchFile(pb.WatchFileRequest(file_id=nothing))))


async def test_a_watched_file_is_told_until_it_is_deleted(client: Any) -> None:
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


async def test_files_and_folders_are_listed_in_pages(client: Any) -> None:
    agent = await make_agent(client)
    for folder_name in ("b", "a"):
        folder = await make_folder(client, folder_name)
        for name in ("3", "1", "2"):
            await upload(client, folder.id, name, b"text")
        request = pb.AttachFolderRequest(agent_id=agent, folder_id=folder.id)
        assert (await client.files.AttachFolder(request)).folder.name == folder_name
    await make_folder(client, "c")
    assert [each.name for each in await all_folders(client)] == ["a", "b", "c"]
    assert [each.name for each in await all_folders(client, agent_id=agent)] == ["a", "b"]
    assert [each.name for each in await all_files(client, folder_id=folder.id)] == ["1", "2", "3"]
    of_agent = [each.name for each in await all_files(client, agent_id=agent)]
    assert of_agent == ["1", "2", "3", "1", "2", "3"]
    with pytest.raises(InvalidArgumentError):
        await client.files.ListFiles(pb.ListFilesRequest())
    both = pb.ListFilesRequest(folder_id=folder.id, agent_id=agent)
    with pytest.raises(InvalidArgumentError):
        await client.files.ListFiles(both)
    with pytest.raises(InvalidArgumentError) as refused:
        await client.files.ListFiles(pb.ListFilesRequest(folder_id=folder.id, page_token="x"))
    assert refused.value.reason is Reason.INVALID_PAGE_TOKEN


async def all_folders(client: Any, **more: Any) -> list[pb.Folder]:
    folders: list[pb.Folder] = []
    token = ""
    while True:
        request = pb.ListFoldersRequest(page_size=2, page_token=token, **more)
        response = await client.files.ListFolders(request)
        folders += response.folders
        if not (token := response.next_page_token):
            return folders


async def all_files(client: Any, **more: Any) -> list[pb.File]:
    files: list[pb.File] = []
    token = ""
    while True:
        request = pb.ListFilesRequest(page_size=2, page_token=token, **more)
        response = await client.files.ListFiles(request)
        files += response.files
        if not (token := response.next_page_token):
            return files


async def test_an_attached_folder_opens_files_only_if_it_is_told_to(client: Any) -> None:
    agent, folder = await make_agent(client), await make_folder(client)
    for name in ("b.txt", "a.txt", "c.txt"):
        await until_read(client, await upload(client, folder.id, name, b"one\ntwo\n"))
    listing = pb.ListFilesRequest(agent_id=agent)
    attach = pb.AttachFolderRequest(agent_id=agent, folder_id=folder.id)
    await client.files.AttachFolder(attach)
    assert not (await client.files.ListFiles(listing)).open_files
    attach.open_count = 2
    await client.files.AttachFolder(attach)
    windows = (await client.files.ListFiles(listing)).open_files
    assert [(each.file_name, each.start_line, each.end_line) for each in windows] == [
        ("notes/a.txt", 1, 2),
        ("notes/b.txt", 1, 2),
    ]
    detach = pb.DetachFolderRequest(agent_id=agent, folder_id=folder.id)
    for _ in range(2):
        await client.files.DetachFolder(detach)
    listed = await client.files.ListFiles(listing)
    assert (list(listed.files), list(listed.open_files)) == ([], [])


async def test_files_are_opened_searched_and_closed(client: Any) -> None:
    agent, folder = await make_agent(client), await make_folder(client)
    await until_read(client, await upload(client, folder.id, "a.txt", b"one\ntwo\nthree\n"))
    attach = pb.AttachFolderRequest(agent_id=agent, folder_id=folder.id)
    await client.files.AttachFolder(attach)
    request = pb.OpenFilesRequest(
        request_id=new_id("request"),
        agent_id=agent,
        windows=[pb.FileWindow(file_name="notes/a.txt", offset=1, length=1)],
    )
    opened = await client.files.OpenFiles(request)
    assert [(each.start_line, each.end_line) for each in opened.open_files] == [(2, 2)]
    assert await client.files.OpenFiles(request) == opened
    found = await client.files.GrepFiles(pb.GrepFilesRequest(agent_id=agent, pattern="T.O"))
    assert [(each.file_name, each.line) for each in found.matches] == [("notes/a.txt", 2)]
    compile_request = context_pb.CompileRequest(agent_id=agent, agent_type="letta_v1_agent")
    compiled = await client.context.Compile(compile_request)
    assert compiled.has_folders
    assert "2: two" in compiled.memory_section
    with pytest.raises(UnavailableError):
        await client.files.SearchFiles(pb.SearchFilesRequest(agent_id=agent, query="two"))
    closed = await client.files.CloseFiles(pb.CloseFilesRequest(agent_id=agent))
    assert not closed.open_files
    assert "2: two" not in (await client.context.Compile(compile_request)).memory_section


async def test_what_is_deleted_is_gone_though_the_index_is_down(
    client: Any, admin: Any, project: str
) -> None:
    agent, folder = await make_agent(client), await make_folder(client)
    files = [await upload(client, folder.id, name, name.encode()) for name in ("a", "b", "c")]
    for file in files:
        await until_read(client, file)
    attach = pb.AttachFolderRequest(agent_id=agent, folder_id=folder.id, open_count=3)
    await client.files.AttachFolder(attach)
    await client.files.DeleteFile(pb.DeleteFileRequest(file_id=files[0].id))
    counts = await rows(admin, project)
    assert counts == dict.fromkeys(counts, 2)
    await client.files.DeleteFolder(pb.DeleteFolderRequest(folder_id=folder.id))
    assert await rows(admin, project) == {}
    dropped = await admin.fetch(
        "SELECT id FROM core_memory.dropped_files WHERE project_id = $1", project
    )
    assert {each["id"] for each in dropped} == {files[0].id, folder.id}
    listed = await client.files.ListFiles(pb.ListFilesRequest(agent_id=agent))
    assert (list(listed.files), list(listed.open_files)) == ([], [])


async def test_the_files_of_another_project_are_not_there(client: Any) -> None:
    agent, folder = await make_agent(client), await make_folder(client)
    file = await upload(client, folder.id, "a.txt", b"secret\n")
    attach = pb.AttachFolderRequest(agent_id=agent, folder_id=folder.id)
    await client.files.AttachFolder(attach)
    with use(client.keys.context(new_id("project"))):
        calls = client.files
        for call, request in (
            (calls.GetFile, pb.GetFileRequest(file_id=file.id)),
            (calls.DeleteFile, pb.DeleteFileRequest(file_id=file.id)),
            (calls.DeleteFolder, pb.DeleteFolderRequest(folder_id=folder.id)),
            (calls.AttachFolder, attach),
            (calls.DetachFolder, pb.DetachFolderRequest(agent_id=agent, folder_id=folder.id)),
        ):
            with pytest.raises(NotFoundError):
                await call(request)
        with pytest.raises(StrataError):
            await upload(client, folder.id, "b.txt", b"text")
        assert not (await calls.ListFiles(pb.ListFilesRequest(agent_id=agent))).files
        assert not (await calls.ListFiles(pb.ListFilesRequest(folder_id=folder.id))).files
        assert not (await calls.ListFolders(pb.ListFoldersRequest())).folders
    assert (await client.files.GetFile(pb.GetFileRequest(file_id=file.id))).file.id == file.id
