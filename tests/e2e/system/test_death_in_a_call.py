"""Processes are killed while a tool call runs: tool execution, the tool runner, the gateway."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from chat_messages import roles
from doubles.script import Call, Reply, call, say
from live import LiveSystem
from mcp_support import open_folder, program_command, tool
from polling import eventually
from run_events import RunEvents, RunStream
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.protocol.errors import UnavailableError
from whole_system import System

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

_NAP_S = 25
_UNTIL_ASLEEP_S = 1.0
NAP = f"""
import time
def nap() -> str:
    \"\"\"Sleeps.\"\"\"
    print("asleep", flush=True)
    time.sleep({_NAP_S})
    return "awake"
"""
ASK = "send_message_to_agent_and_wait_for_reply"
NOTE = Call("memory_insert", {"label": "human", "new_str": "Was there."})


SHORT_NAP = """
import time
def short_nap() -> str:
    \"\"\"Sleeps for a moment.\"\"\"
    time.sleep(4)
    return "awake"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that programs of other users can write to."""
    with open_folder() as path:
        yield path


def service(strata: LiveSystem, name: str = "tool_execution") -> int:
    """Returns the pid of a service, by default of tool execution."""
    (process,) = [
        child.pid
        for child in psutil.Process(strata.pid).children()
        if any(name in part for part in child.cmdline())
    ]
    return process


def workers(strata: LiveSystem) -> set[int]:
    """Returns the pids below the tool runner, one for each call; none while it is restarted."""
    try:
        runner = psutil.Process(service(strata, "tool_runner"))
        return {child.pid for child in runner.children(recursive=True)}
    except (ValueError, psutil.NoSuchProcess):
        return set()


async def add_program(system: System, folder: Path) -> None:
    """Adds an MCP server whose tool writes a line to a file and never returns."""
    listed = folder / "tools.json"
    listed.write_text(json.dumps([tool("mark")]))
    command = [*program_command(), str(listed)]
    server = mcp_pb.McpServer(name="marker", transport=mcp_pb.MCP_TRANSPORT_STDIO, command=command)
    stub = mcp_grpc.McpServiceStub(system.channel)
    added = (await stub.AddMcpServer(mcp_pb.AddMcpServerRequest(server=server))).server
    assert [tool.name for tool in added.tools] == ["marker__mark"], added.error


def returns_of(log: list[message_pb2.Message]) -> dict[str, message_pb2.ToolReturnPart]:
    parts = [part.tool_return for message in log for part in message.parts]
    return {part.name: part for part in parts if part.name}


async def test_an_interrupted_call_is_unknown_and_nothing_runs_twice(
    split_live: LiveSystem, folder: Path
) -> None:
    system = split_live.connect()
    await add_program(system, folder)
    await system.tools.UpsertTool(tool_pb.UpsertToolRequest(source_code=NAP))
    agent = await system.make_agent(
        tools=["marker__mark", "nap", "memory_insert", "run_code_with_tools"]
    )
    marks = folder / "marks"

    # Killed after the tool of the MCP server had its effect and before the next call began.
    mark = Call("marker__mark", {"file": str(marks)})
    system.model.script(Reply(calls=(mark, NOTE)), say("I cannot tell."))
    turn = asyncio.create_task(system.send(agent, "Mark it."))
    await eventually(lambda: marks.exists() and marks.read_text() == "done\n")
    before = service(split_live)
    tree = [before, *(child.pid for child in psutil.Process(before).children(recursive=True))]
    os.kill(before, signal.SIGKILL)
    ran = await turn
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert ran.text == "I cannot tell."
    tool_returns = returns_of(await system.log(agent))
    assert tool_returns["marker__mark"].status == message_pb2.TOOL_STATUS_UNKNOWN
    assert tool_returns["memory_insert"].status == message_pb2.TOOL_STATUS_OK
    assert marks.read_text() == "done\n"
    assert (await system.block(agent, "human")).value.count("Was there.") == 1
    await eventually(lambda: not any(map(psutil.pid_exists, tree)))

    # Tool execution, the caller of the tool runner, dies: the runner kills the call immediately.
    idle = workers(split_live)
    system.model.script(call("nap"), say("Perhaps I slept."))
    stream = system.begin(agent, "Sleep.")
    await stream.until("tool_started")
    second = service(split_live)
    assert second != before
    await asyncio.sleep(_UNTIL_ASLEEP_S)
    assert idle <= workers(split_live)
    os.kill(second, signal.SIGKILL)
    async with asyncio.timeout(_NAP_S / 2):
        await eventually(lambda: not idle <= workers(split_live))
    ran = await stream.rest()
    assert ran.text == "Perhaps I slept."
    tool_returns = returns_of(await system.log(agent))
    assert tool_returns["nap"].status == message_pb2.TOOL_STATUS_UNKNOWN
    assert len(system.model.requests) == 4

    # The tool runner dies in the middle of a call. Without allowed hosts the tool had no effect
    # outside of its sandbox, so the outcome is known.
    system.model.script(call("nap"), say("Perhaps I slept again."))
    stream = system.begin(agent, "Sleep again.")
    await stream.until("tool_started")
    await asyncio.sleep(_UNTIL_ASLEEP_S)
    os.kill(service(split_live, "tool_runner"), signal.SIGKILL)
    ran = await stream.rest()
    assert ran.text == "Perhaps I slept again."
    following = returns_of(await system.log(agent))["nap"]
    assert following.tool_call_id != tool_returns["nap"].tool_call_id
    assert following.status == message_pb2.TOOL_STATUS_FAILED
    assert "nothing outside of its sandbox" in following.content
    assert len(system.model.requests) == 6
    await eventually(lambda: bool(workers(split_live)))

    # Killed while code waits for a nested call: the call is made once, and the code does not
    # continue.
    code = f"""
memory_insert("human", "Before.")
call_tool("marker__mark", file={str(marks)!r})
memory_insert("human", "After.")
"""
    system.model.script(call("run_code_with_tools", {"code": code}), say("I cannot tell again."))
    turn = asyncio.create_task(system.send(agent, "Mark it again."))
    await eventually(lambda: marks.read_text() == "done\ndone\n")
    os.kill(service(split_live), signal.SIGKILL)
    ran = await turn
    assert ran.text == "I cannot tell again."
    tool_returns = returns_of(await system.log(agent))
    lost = tool_returns["run_code_with_tools"]
    assert lost.status == message_pb2.TOOL_STATUS_UNKNOWN
    assert [(nested_call.name, nested_call.status) for nested_call in lost.nested_calls] == [
        ("memory_insert", message_pb2.TOOL_STATUS_OK),
        ("marker__mark", message_pb2.TOOL_STATUS_UNKNOWN),
    ]
    assert marks.read_text() == "done\ndone\n"
    human = (await system.block(agent, "human")).value
    assert (human.count("Before."), human.count("After.")) == (1, 0)

    # Killed while an agent waits for another agent: the repeated call joins the run that the
    # first one has started.
    other = await system.make_agent()
    asking = await system.make_agent(tools=[ASK])
    held = asyncio.Event()
    system.model.script(
        call(ASK, {"message": "The capital?", "other_agent_id": other.id}),
        Reply(text="Paris, as far as I know.", piece=2, held=held),
        say("Paris it is."),
    )
    known = len(system.model.requests)
    turn = asyncio.create_task(system.send(asking, "Ask for the capital."))
    await eventually(lambda: len(system.model.requests) == known + 2)
    os.kill(service(split_live), signal.SIGKILL)
    held.set()
    assert (await turn).text == "Paris it is."
    tool_returns = returns_of(await system.log(asking))
    assert tool_returns[ASK].status == message_pb2.TOOL_STATUS_OK
    assert "Paris, as far as I know." in tool_returns[ASK].content
    assert roles(await system.log(other)) == ["system", "user", "assistant"]
    await system.channel.close()


async def test_killing_the_gateway_cancels_no_tool_and_repeats_no_model_request(
    split_live: LiveSystem,
) -> None:
    system = split_live.connect()
    await system.tools.UpsertTool(tool_pb.UpsertToolRequest(source_code=SHORT_NAP))
    agent = await system.make_agent(tools=["short_nap", "memory_insert"])

    # Killed in the middle of a call that another call follows.
    system.model.script(Reply(calls=(Call("short_nap"), NOTE)), say("I am awake."))
    stream = system.begin(agent, "Sleep.", request_id="sleep")
    await stream.until("tool_started")
    await killed(split_live, "gateway")
    ran = await followed(system, stream)
    assert ran.text == "I am awake."
    tool_returns = returns_of(await system.log(agent))
    assert tool_returns["short_nap"].status == message_pb2.TOOL_STATUS_OK
    assert "awake" in tool_returns["short_nap"].content
    assert tool_returns["memory_insert"].status == message_pb2.TOOL_STATUS_OK
    assert (await system.block(agent, "human")).value.count("Was there.") == 1
    assert len(system.model.requests) == 2

    # Killed in the middle of a reply.
    held = asyncio.Event()
    system.model.script(Reply(text="A long reply.", piece=2, held=held))
    stream = system.begin(agent, "Talk.", request_id="talk")
    await stream.until("step_started")
    await eventually(lambda: len(system.model.requests) == 3)
    await killed(split_live, "gateway")
    held.set()
    ran = await followed(system, stream)
    assert ran.text == "A long reply."
    assert len(system.model.requests) == 3
    await system.channel.close()


async def killed(strata: LiveSystem, name: str) -> None:
    """Kills the process of a service and waits until a new process has replaced it."""
    before = service(strata, name)
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(60):
        while True:
            try:
                if service(strata, name) != before:
                    return
            except (ValueError, psutil.NoSuchProcess):
                pass
            await asyncio.sleep(0.05)


async def followed(system: System, broken: RunStream) -> RunEvents:
    """Follows a run after its stream broke; asserts that events received before are unchanged."""
    run_id, seen = broken.run_id, [event for event in broken.events if event.sequence]
    async with asyncio.timeout(60):
        while True:
            try:
                ran = await system.follow(run_id)
                break
            except UnavailableError:
                await asyncio.sleep(0.1)
    assert ran.stored_events[: len(seen)] == seen
    assert [event.sequence for event in ran.stored_events] == list(
        range(1, len(ran.stored_events) + 1)
    )
    return ran
