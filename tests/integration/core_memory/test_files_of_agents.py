"""Listings, attachment, deletion and tenancy of folders and files, over the service."""

from __future__ import annotations

from typing import Any

import pytest

from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.protocol.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    StrataError,
    UnavailableError,
)
from strata.shared.context import use
from strata.shared.ids import new_id
from uploading import make_agent, make_folder, rows, until_read, upload

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_files_and_folders_are_listed_in_pages(client: Any) -> None:
    agent = await make_agent(client)
    for folder_name in ("b", "a"):
        folder = await make_folder(client, folder_name)
        for name in ("3", "1", "2"):
            await upload(client, folder.id, name, b"text")
        request = pb.AttachFolderRequest(agent_id=agent, folder_id=folder.id)
        assert (await client.files.AttachFolder(request)).folder.name == folder_name
    await make_folder(client, "c")
    assert [folder.name for folder in await all_folders(client)] == ["a", "b", "c"]
    assert [folder.name for folder in await all_folders(client, agent_id=agent)] == [
        "a",
        "b",
    ]
    assert [file.name for file in await all_files(client, folder_id=folder.id)] == [
        "1",
        "2",
        "3",
    ]
    of_agent = [file.name for file in await all_files(client, agent_id=agent)]
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


async def test_attaching_a_folder_opens_files_only_with_open_count(client: Any) -> None:
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
    assert [(window.file_name, window.start_line, window.end_line) for window in windows] == [
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
    assert [(open_file.start_line, open_file.end_line) for open_file in opened.open_files] == [
        (2, 2)
    ]
    assert await client.files.OpenFiles(request) == opened
    response = await client.files.GrepFiles(pb.GrepFilesRequest(agent_id=agent, pattern="T.O"))
    assert [(match_.file_name, match_.line) for match_ in response.matches] == [("notes/a.txt", 2)]
    compile_request = context_pb.CompileRequest(agent_id=agent, agent_type="letta_v1_agent")
    compiled = await client.context.Compile(compile_request)
    assert compiled.has_folders
    assert "2: two" in compiled.memory_section
    # The call waits for it until just before the deadline, which a busy machine can miss.
    with pytest.raises((UnavailableError, DeadlineExceededError)):
        await client.files.SearchFiles(
            pb.SearchFilesRequest(agent_id=agent, query="two"), timeout=2
        )
    closed = await client.files.CloseFiles(pb.CloseFilesRequest(agent_id=agent))
    assert not closed.open_files
    assert "2: two" not in (await client.context.Compile(compile_request)).memory_section


async def test_deletion_works_while_the_index_is_down(
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
    assert {row["id"] for row in dropped} == {files[0].id, folder.id}
    listed = await client.files.ListFiles(pb.ListFilesRequest(agent_id=agent))
    assert (list(listed.files), list(listed.open_files)) == ([], [])


async def test_files_and_folders_of_another_project_are_not_found(client: Any) -> None:
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
            (calls.ListFiles, pb.ListFilesRequest(agent_id=agent)),
            (calls.ListFiles, pb.ListFilesRequest(folder_id=folder.id)),
        ):
            with pytest.raises(NotFoundError):
                await call(request)
        with pytest.raises(StrataError):
            await upload(client, folder.id, "b.txt", b"text")
        assert not (await calls.ListFolders(pb.ListFoldersRequest())).folders
    assert (await client.files.GetFile(pb.GetFileRequest(file_id=file.id))).file.id == file.id
