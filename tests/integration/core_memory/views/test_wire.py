"""Responses to clients of `FileService`: statuses, messages for models, the compiled prompt."""

from __future__ import annotations

from typing import Any

import pytest

from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.protocol.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    Reason,
    StrataError,
)
from strata.shared.ids import new_id


@pytest.fixture
async def agent(files: Any) -> str:
    """An agent with docs/a, of three lines, and docs/raw, which cannot be read."""
    folder = await files.seeds.folder("docs", description="Papers.")
    await files.seeds.file(folder, "a", "one\ntwo\nthree\n")
    await files.seeds.file(folder, "raw", state="failed", error="It is encrypted.")
    return str(await files.seeds.agent(folder))


def window(name: str, *place: int) -> pb.FileWindow:
    return pb.FileWindow(file_name=name, **dict(zip(("offset", "length"), place, strict=False)))


async def open_files(client: Any, agent: str, *windows: pb.FileWindow, **more: Any) -> Any:
    return await client.files.OpenFiles(
        pb.OpenFilesRequest(agent_id=agent, windows=windows, **more)
    )


async def test_opened_files_are_shown_in_the_prompt(client: Any, agent: str) -> None:
    request = context_pb.CompileRequest(agent_id=agent)
    before = await client.context.Compile(request)
    opened = await open_files(client, agent, window("docs/a", 1, 1), request_id=new_id("request"))
    assert opened.message == "* Opened docs/a (lines 2-2)"
    request.if_revision = before.revision
    after = await client.context.Compile(request)
    assert after.has_folders
    assert not after.not_changed
    assert (
        "<value>\n[Viewing lines 2 to 2 (out of 3 lines)]\n2: two\n</value>\n"
        in after.memory_section
    )
    request.if_revision = after.revision
    assert (await client.context.Compile(request)).not_changed


@pytest.mark.parametrize(
    ("windows", "error", "reason", "message"),
    [
        ([], InvalidArgumentError, Reason.INVALID_FIELD, "No file requests provided"),
        (
            [window("docs/a"), window("docs/b"), window("docs/c")],
            InvalidArgumentError,
            Reason.INVALID_FIELD,
            "Cannot open 3 files: exceeds configured maximum limit of 2 files",
        ),
        (
            [window("a")],
            NotFoundError,
            Reason.FILE_NOT_FOUND,
            (
                "a not attached - did you get the filename correct? Currently you have the "
                "following files attached: [docs/a, docs/raw]"
            ),
        ),
        (
            [window("docs/a", 3)],
            OutOfRangeError,
            Reason.INVALID_FIELD,
            "File docs/a has only 3 lines, but requested offset 3 is out of range",
        ),
        (
            [window("docs/raw")],
            FailedPreconditionError,
            Reason.EDIT_NOT_APPLICABLE,
            "File docs/raw could not be read: It is encrypted.",
        ),
    ],
)
async def test_refusals_are_statuses_with_messages_for_the_model(
    client: Any,
    agent: str,
    windows: list[pb.FileWindow],
    error: type[StrataError],
    reason: Reason,
    message: str,
) -> None:
    with pytest.raises(error) as caught:
        await open_files(client, agent, *windows, max_files_open=2)
    assert caught.value.reason is reason
    assert caught.value.message == message


async def test_a_repeated_request_gets_the_first_answer(client: Any, agent: str) -> None:
    request_id = new_id("request")
    first = await open_files(client, agent, window("docs/a"), request_id=request_id)
    await client.files.CloseFiles(pb.CloseFilesRequest(agent_id=agent))
    assert await open_files(client, agent, window("docs/a"), request_id=request_id) == first
    listed = await client.files.ListFiles(pb.ListFilesRequest(agent_id=agent))
    assert not listed.open_files
    with pytest.raises(AlreadyExistsError) as reused:
        await open_files(client, agent, window("docs/a", 1), request_id=request_id)
    assert reused.value.reason is Reason.REQUEST_ID_REUSED


async def test_a_search_by_pattern_over_the_wire(client: Any, agent: str) -> None:
    request = pb.GrepFilesRequest(agent_id=agent, pattern="T", include="*a", context_lines=0)
    response = await client.files.GrepFiles(request)
    assert [(match_.file_name, match_.line, list(match_.lines)) for match_ in response.matches] == [
        ("docs/a", 2, ["> 2: two"]),
        ("docs/a", 3, ["> 3: three"]),
    ]
    assert (response.total_matches, response.truncated) == (2, False)
    request.pattern = r"(t)\1"
    with pytest.raises(InvalidArgumentError, match="backreferences"):
        await client.files.GrepFiles(request)
