"""Images of MCP tools and of users, through a running server that is killed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from doubles.script import Call, Reply, say
from image_samples import png
from live import LiveSystem
from mcp_support import program_command, tool
from run_events import RunEvents, RunStream
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.tool_execution.v1 import mcp_service_pb2 as mcp_pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as mcp_grpc
from strata.client.images import user_message
from whole_system import System

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

SENT, DRAWN = png(3, 3, shade=50), png(5, 4, shade=200)
BOTH = [("image/png", SENT), ("image/png", DRAWN)]
DRAW = Call("painter__draw", {"data": base64.b64encode(DRAWN).decode()})


async def add_painter(system: System, folder: Path) -> None:
    listed = folder / "tools.json"
    listed.write_text(json.dumps([tool("draw")]))
    command = [*program_command(), str(listed)]
    server = mcp_pb.McpServer(name="painter", transport=mcp_pb.MCP_TRANSPORT_STDIO, command=command)
    stub = mcp_grpc.McpServiceStub(system.channel)
    added = (await stub.AddMcpServer(mcp_pb.AddMcpServerRequest(server=server))).server
    assert [tool.name for tool in added.tools] == ["painter__draw"], added.error


async def send(
    system: System, agent: agent_pb.Agent, message: message_pb2.MessageInput
) -> RunEvents:
    request = run_pb.SendMessageRequest(agent_id=agent.id, messages=[message])
    return await RunStream(system.runs.SendMessage(request)).rest()


async def check_drawn(system: System, agent: agent_pb.Agent) -> None:
    """Sends an image, calls the tool that draws another, and checks what model and client get."""
    model = system.model
    model.requests.clear()
    model.script(Reply(calls=(DRAW,)), say("Two squares."))
    ran = await send(system, agent, user_message("Draw one like this.", [SENT]))
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert list(ran.finished.taint) == [message_pb2.PROVENANCE_MCP]
    assert [request.images for request in model.requests] == [BOTH[:1], BOTH]
    (answered,) = model.requests[1].answered
    assert json.loads(answered)["message"] == "Drawn.\n[image 1: image/png, 5 x 4]"
    (returned,) = [
        part.tool_return for m in ran.messages for part in m.parts if part.tool_return.name
    ]
    (image,) = returned.images
    assert (image.width, image.height, image.data) == (5, 4, b"")
    assert all(DRAWN not in event.SerializeToString() for event in ran.events)


async def test_images_of_users_and_tools_survive_a_killed_server(
    single_live: LiveSystem, open_folder: Path
) -> None:
    strata, model = single_live, single_live.model
    system = strata.connect()
    await add_painter(system, open_folder)
    agents = [
        await system.make_agent(f"{dialect}/test-model", tools=["painter__draw"])
        for dialect in ("openai", "anthropic")
    ]
    for agent in agents:
        await check_drawn(system, agent)
    await system.channel.close()

    await strata.kill()
    system = await strata.start_system()
    for agent in agents:
        model.script(say("The same two."))
        again = await system.send(agent, "What do you see?")
        assert again.text == "The same two."
        assert model.requests[-1].images == BOTH
    await system.channel.close()
