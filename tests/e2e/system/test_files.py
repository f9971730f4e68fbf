"""Files in whole turns: uploaded by a user, opened and searched by the model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from doubles.script import Call, ModelCall, Reply, call, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.shared.ids import new_id
from whole_system import System

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

FILE_TOOLS = ["open_files", "grep_files", "semantic_search_files"]
BOAT = """\
# The boat
The boat is called Kestrel.
She lies in the harbour of Whitby.
Her sails were mended in spring."""
BREAD = """\
# Sourdough bread
Feed the starter in the evening.
Knead the dough for ten minutes.
Bake at 230 degrees."""


async def upload(system: System, folder: pb.Folder, name: str, text: str) -> pb.File:
    """Uploads a file and waits until it can be found by meaning."""
    header = pb.UploadFileHeader(folder_id=folder.id, name=name)

    async def pieces() -> AsyncIterator[pb.UploadFileRequest]:
        yield pb.UploadFileRequest(header=header)
        yield pb.UploadFileRequest(chunk=text.encode())

    file: pb.File = (await system.files.UploadFile(pieces())).file
    async with asyncio.timeout(60):
        async for update in system.files.WatchFile(pb.WatchFileRequest(file_id=file.id)):
            file = update.file
    assert file.state == pb.FILE_STATE_READY, file
    return file


@pytest_asyncio.fixture(loop_scope="session")
async def folder(system: System) -> pb.Folder:
    """A folder of two files."""
    request = pb.CreateFolderRequest(
        name=f"notes-{new_id('x')[-8:]}", description="My notes.", instructions="Quote them."
    )
    made: pb.Folder = (await system.files.CreateFolder(request)).folder
    await upload(system, made, "boat.md", BOAT)
    await upload(system, made, "bread.md", BREAD)
    return made


async def reader(system: System, folder: pb.Folder, **fields: Any) -> agent_pb.Agent:
    """An agent with the folder."""
    agent = await system.make_agent(**fields)
    await system.files.AttachFolder(pb.AttachFolderRequest(agent_id=agent.id, folder_id=folder.id))
    return agent


def tool_return_of(request: ModelCall) -> str:
    """The return of the last and only call, which succeeded, as sent to the model."""
    (packed,) = (json.loads(text) for text in request.answered)
    assert packed["status"] == "OK", packed
    return str(packed["message"])


def directories(request: ModelCall) -> str:
    """The files as the model sees them."""
    match = re.search(r"<directories>\n.*\n</directories>", request.system, re.DOTALL)
    assert match, request.system
    return match.group()


async def test_model_opens_a_file_and_sees_it_from_then_on(
    system: System, folder: pb.Folder
) -> None:
    agent = await reader(system, folder)
    boat = f"{folder.name}/boat.md"
    opening = {"file_requests": [{"file_name": boat, "offset": None, "length": None}]}
    system.model.script(
        call("open_files", opening),
        say("It is called Kestrel."),
        say("In Whitby."),
    )
    first = await system.send(agent, "What is my boat called?")
    await system.send(agent, "Where does it lie?")

    assert first.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    before, after, next_turn = system.model.requests
    assert before.tool_names[-3:] == FILE_TOOLS
    assert before.tool_names == after.tool_names == next_turn.tool_names
    seen = directories(before)
    assert "- current_files_open=0\n- max_files_open=5" in seen
    assert f'<directory name="{folder.name}">\n<description>My notes.</description>' in seen
    assert seen.count('<file status="closed"') == 2
    assert "Kestrel" not in seen
    assert tool_return_of(after).startswith(f"* Opened {boat}")
    assert "- current_files_open=1" in directories(after)
    assert "1: # The boat\n2: The boat is called Kestrel." in directories(after)
    assert directories(next_turn) == directories(after)
    assert await system.system_message(agent) == next_turn.system


async def test_model_searches_files_by_pattern_and_by_meaning(
    system: System, folder: pb.Folder
) -> None:
    agent = await reader(system, folder)
    system.model.script(
        call("grep_files", {"pattern": "kestrel|sails"}),
        call("semantic_search_files", {"query": "Where is the ship moored?"}),
        call("semantic_search_files", {"query": "how hot must the oven be", "limit": 1}),
        say("Now I know."),
    )
    await system.send(agent, "Look it up.")

    _, grepped, moored, oven = system.model.requests
    assert f"=== {folder.name}/boat.md:2 ===" in tool_return_of(grepped)
    assert "> 2: The boat is called Kestrel." in tool_return_of(grepped)
    assert "Whitby" in tool_return_of(moored)
    assert f"{folder.name}/boat.md" in tool_return_of(moored)
    assert "230 degrees" in tool_return_of(oven)
    # A search opens no file and does not change the prompt.
    assert directories(oven) == directories(grepped)


async def test_calls_of_one_reply_search_and_open_together(
    system: System, folder: pb.Folder
) -> None:
    agent = await reader(system, folder)
    bread = f"{folder.name}/bread.md"
    system.model.script(
        Reply(
            calls=(
                Call("grep_files", {"pattern": "knead"}),
                Call("open_files", {"file_requests": [{"file_name": bread, "offset": 3}]}),
                Call("memory_insert", {"label": "human", "new_str": "Bakes bread."}),
            )
        ),
        say("Ten minutes."),
    )
    ran = await system.send(agent, "How long do I knead?")

    assert ran.text == "Ten minutes."
    last = system.model.requests[1]
    assert [json.loads(text)["status"] for text in last.answered] == ["OK"] * 3
    assert "[Viewing lines 4 to 4 (out of 4 lines)]\n4: Bake at 230 degrees." in last.system
    assert "Bakes bread." in last.system


async def test_the_file_limits_of_the_agent_are_enforced(system: System, folder: pb.Folder) -> None:
    agent = await reader(system, folder, max_files_open=1, per_file_view_window_char_limit=60)
    boat, bread = (f"{folder.name}/{name}" for name in ("boat.md", "bread.md"))
    both = {"file_requests": [{"file_name": boat}, {"file_name": bread}]}
    system.model.script(
        call("open_files", both),
        call("open_files", {"file_requests": [{"file_name": boat}]}),
        call("open_files", {"file_requests": [{"file_name": bread}]}),
        say("Done."),
    )
    await system.send(agent, "Read.")

    _, refused, first, second = system.model.requests
    packed = json.loads(refused.answered[0])
    assert packed["status"] == "Failed"
    assert "exceeds configured maximum limit of 1 files" in packed["message"]
    assert "- current_files_open=1\n- max_files_open=1" in directories(first)
    assert "...[TRUNCATED]" in directories(first)
    assert "Whitby" not in directories(first)
    assert f"Closed 1 least recently used file(s) due to open file limit: {boat}" in tool_return_of(
        second
    )
    assert directories(second).count('<file status="open"') == 1
    # A raised limit applies immediately.
    await system.agents.UpdateAgent(
        agent_pb.UpdateAgentRequest(
            agent_id=agent.id, max_files_open=2, per_file_view_window_char_limit=1_000
        )
    )
    system.model.script(call("open_files", both), say("Done."))
    await system.send(agent, "Read both.")
    assert "- current_files_open=2\n- max_files_open=2" in directories(system.model.requests[-1])
    assert "Whitby" in directories(system.model.requests[-1])


async def test_wrong_name_is_an_error_and_closes_nothing(system: System, folder: pb.Folder) -> None:
    agent = await reader(system, folder)
    boat = f"{folder.name}/boat.md"
    system.model.script(
        call("open_files", {"file_requests": [{"file_name": boat}]}),
        call(
            "open_files",
            {"file_requests": [{"file_name": "boat.md"}], "close_all_others": True},
        ),
        say("Sorry."),
    )
    await system.send(agent, "Open it.")

    packed = json.loads(system.model.requests[2].answered[0])
    assert packed["status"] == "Failed"
    assert "boat.md not attached - did you get the filename correct?" in packed["message"]
    assert boat in packed["message"]
    assert "- current_files_open=1" in directories(system.model.requests[2])


async def test_without_folders_no_file_tools_are_offered(system: System, folder: pb.Folder) -> None:
    agent = await reader(system, folder)
    stranger = await system.make_agent()
    system.model.script(say("Hello."), say("Hello."), say("Hello."))
    await system.send(agent, "Hello.")
    await system.send(stranger, "Hello.")
    await system.files.DetachFolder(pb.DetachFolderRequest(agent_id=agent.id, folder_id=folder.id))
    await system.send(agent, "Hello again.")

    first, other, later = system.model.requests
    assert set(FILE_TOOLS) <= set(first.tool_names)
    for request in (other, later):
        assert not set(FILE_TOOLS) & set(request.tool_names)
        assert "<directories>" not in request.system


async def test_window_is_described_with_its_files_and_their_tools(
    system: System, folder: pb.Folder
) -> None:
    agent = await reader(system, folder)
    system.model.script(say("Hello."))
    await system.send(agent, "Hello.")
    request = agent_pb.GetContextWindowRequest(agent_id=agent.id)
    window = await system.agents.GetContextWindow(request)

    counts = {part.name: part.count for part in window.parts}
    assert counts["files"] == 2
    assert counts["tools"] == len(system.model.requests[0].tool_names)
