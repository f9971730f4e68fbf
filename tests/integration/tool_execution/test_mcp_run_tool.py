"""RunTool for tools of MCP servers."""

from __future__ import annotations

import base64
import json

import pytest

from image_samples import png
from mcp_support import Mcp, tool
from strata.api.common.v1 import message_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.protocol.images import MAX_IMAGE_BYTES
from strata.shared.settings import MIB

pytestmark = pytest.mark.asyncio(loop_scope="session")
TOWN = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}


async def run(mcp: Mcp, name: str, /, **arguments: object) -> pb.RunToolResponse:
    tool = (await mcp.registry.GetTool(pb.GetToolRequest(name=name))).tool
    request = pb.RunToolRequest(tool_id=tool.id, arguments_json=json.dumps(arguments))
    response: pb.RunToolResponse = await mcp.registry.RunTool(request)
    return response


def value_of(ran: pb.RunToolResponse) -> str:
    return str(json.loads(ran.tool_return.content)["message"])


async def test_a_tool_of_a_server_runs_without_an_agent(mcp: Mcp) -> None:
    await mcp.program("pets", tool("echo", schema=TOWN))
    ran = await run(mcp, "pets__echo", town="Graz")
    assert json.loads(value_of(ran)) == {"town": "Graz"}
    assert ran.end == pb.RUN_TOOL_END_RETURNED
    assert ran.tool_return.status == message_pb2.TOOL_STATUS_OK
    assert ran.tool_return.provenance == message_pb2.PROVENANCE_MCP
    assert ran.isolation == ""


async def test_images_of_a_tool_are_returned_with_their_bytes(mcp: Mcp) -> None:
    await mcp.program("painter", tool("draw"))
    drawn = png(5, 4)
    ran = await run(mcp, "painter__draw", data=base64.b64encode(drawn).decode())
    [image] = ran.tool_return.images
    assert (image.media_type, image.width, image.height, image.data) == ("image/png", 5, 4, drawn)


async def test_the_largest_image_fits_into_a_message_of_a_server(mcp: Mcp) -> None:
    await mcp.program("painter", tool("photograph"))
    ran = await run(mcp, "painter__photograph", size=MAX_IMAGE_BYTES)
    [image] = ran.tool_return.images
    assert (image.media_type, len(image.data)) == ("image/gif", MAX_IMAGE_BYTES)


async def test_images_that_a_client_could_not_receive_are_returned_without_their_bytes(
    mcp: Mcp,
) -> None:
    await mcp.program("painter", tool("photograph"))
    ran = await run(mcp, "painter__photograph", size=1_500_000, count=4)
    images = ran.tool_return.images
    assert [len(image.data) for image in images] == [1_500_000, 1_500_000, 0, 0]
    assert [image.size_bytes for image in images] == [1_500_000] * 4
    assert len({image.image_id for image in images}) == 1
    assert ran.ByteSize() < MIB * 4, "the limit of a gRPC client"


async def test_arguments_are_checked_before_the_server_is_called(mcp: Mcp) -> None:
    await mcp.program("pets", tool("echo", schema=TOWN))
    ran = await run(mcp, "pets__echo", city="Graz")
    assert ran.tool_return.status == message_pb2.TOOL_STATUS_FAILED
    assert ran.end == pb.RUN_TOOL_END_UNSPECIFIED
    assert "town" in value_of(ran)


async def test_an_error_of_the_server_and_a_lost_answer_are_distinguished(mcp: Mcp) -> None:
    await mcp.program("pets", tool("fail"), tool("die"))
    failed, lost = await run(mcp, "pets__fail"), await run(mcp, "pets__die")
    assert failed.tool_return.status == message_pb2.TOOL_STATUS_FAILED
    assert failed.end == pb.RUN_TOOL_END_RAISED
    assert lost.tool_return.status == message_pb2.TOOL_STATUS_UNKNOWN
    assert lost.end == pb.RUN_TOOL_END_KILLED
    assert "the outcome is unknown" in value_of(lost)


async def test_a_changed_tool_is_not_run_until_it_is_approved(mcp: Mcp) -> None:
    server, listed = await mcp.program("pets", tool("echo", "Echoes."))
    listed.write(tool("echo", "Echoes otherwise."))
    await mcp.refresh(server)
    ran = await run(mcp, "pets__echo")
    assert ran.tool_return.status == message_pb2.TOOL_STATUS_FAILED
    assert "may not be run now" in value_of(ran)


async def test_secrets_are_removed_from_its_return(mcp: Mcp) -> None:
    await mcp.secret("TOKEN_OF_PETS", "correct horse")
    await mcp.program(
        "pets", tool("environment"), environment_secrets={"PETS_TOKEN": "TOKEN_OF_PETS"}
    )
    ran = await run(mcp, "pets__environment", name="PETS_TOKEN")
    assert value_of(ran) == "[secret TOKEN_OF_PETS]"
