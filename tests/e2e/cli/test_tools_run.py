"""``strata tools run`` for stored tools."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from image_samples import png
from strata.api.common.v1 import message_pb2
from strata.api.tool_execution.v1 import tool_service_pb2 as pb


def answer(
    status: message_pb2.ToolStatus.ValueType = message_pb2.TOOL_STATUS_OK,
) -> pb.RunToolResponse:
    returned = message_pb2.ToolReturnPart(
        status=status,
        content=json.dumps({"message": "Drawn."}),
        images=[message_pb2.ImagePart(media_type="image/png", data=png())],
    )
    return pb.RunToolResponse(tool_return=returned, duration_ms=7)


async def test_arguments_follow_the_name_and_images_are_stored(
    strata: Run, gateway: ScriptedGateway, open_folder: Path
) -> None:
    gateway.tools.ran = answer()
    folder = open_folder / "drawings"
    done = await strata(
        "tools", "run", "painter__draw", '{"what": "a square"}', "--images", str(folder)
    )
    assert done.code == 0, done
    [request] = gateway.tools.runs
    assert request.tool_id == "tool-painter__draw"
    assert json.loads(request.arguments_json) == {"what": "a square"}
    assert done.out == "Drawn.\n"
    assert "isolation" not in done.err
    assert (folder / "image-1.png").read_bytes() == png()


async def test_a_failed_tool_exits_with_1_and_repeated_arguments_are_refused(
    strata: Run, gateway: ScriptedGateway
) -> None:
    gateway.tools.ran = answer(message_pb2.TOOL_STATUS_FAILED)
    assert (await strata("tools", "run", "painter__draw")).code == 1
    twice = await strata("tools", "run", "painter__draw", "{}", "--args", '{"a": 1}')
    assert twice.code == 2
    assert len(gateway.tools.runs) == 1
