"""Calls of ToolService."""

from __future__ import annotations

import json
from typing import Any

from integration.tool_execution.conftest import Tools
from strata.api.common.v1 import message_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as pb

WEATHER = '''
import enum
import os
from dataclasses import dataclass

class Unit(enum.Enum):
    CELSIUS = "c"
    KELVIN = "k"

@dataclass
class Town:
    name: str
    country: str = "AT"

def weather(town: Town, unit: Unit = Unit.CELSIUS) -> dict:
    """Tells the weather of a town.

    Args:
        town: Where.
        unit: In which unit.
    """
    if town.name == "Nowhere":
        raise ValueError("boom now")
    return {"town": f"{town.name}/{town.country}", "unit": unit.name}
'''


async def upsert(registry: Any, source: str = WEATHER, **fields: Any) -> pb.Tool:
    request = pb.UpsertToolRequest(source_code=source, **fields)
    tool: pb.Tool = (await registry.UpsertTool(request)).tool
    return tool


def result_of(response: Any) -> tuple[bool, Any]:
    """Whether a call succeeded, and its return for the model."""
    packed = json.loads(response.tool_return.content)
    assert (packed["status"] == "OK") == (response.tool_return.status == message_pb2.TOOL_STATUS_OK)
    return packed["status"] == "OK", packed["message"]


async def run(tools: Tools, name: str, **arguments: Any) -> execution_pb.FinishedCall:
    """Runs one call of a tool as the loop does."""
    stub = execution_grpc.ExecutionServiceStub(tools.services.channel("tool_execution"))
    call = execution_pb.ToolCall(
        tool_call_id="call-1", name=name, arguments=json.dumps(arguments), idempotency_key="k"
    )
    request = execution_pb.ExecuteToolsRequest(
        agent_id=tools.agent.id,
        conversation_id=tools.agent.default_conversation_id,
        run_id=tools.run_id,
        step_id="step-1",
        calls=[call],
        allowed_tools=[name],
    )
    [finished] = [
        ExecuteTool.finished
        async for ExecuteTool in stub.ExecuteTools(request)
        if ExecuteTool.HasField("finished")
    ]
    return finished
