"""Tools that read and change the memory of their agent."""

from __future__ import annotations

import json
from typing import Any

from integration.tool_execution.conftest import Tools
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.tool_execution.v1 import tool_service_pb2 as pb
from strata.shared.ids import new_id

TIMES = "times: int, "
DESCRIBED = "\n\n    Args:\n        times: How often.\n    "
START = "Name: Ada\nCity: Graz"


def source(body: str, name: str = "stateful", parameters: str = "") -> str:
    """Returns the source of a tool with this body; its lines can use ``memory``."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return (
        f'def {name}({parameters}agent_state: "AgentState") -> object:\n'
        f'    """Does something with memory.{DESCRIBED if parameters == TIMES else ""}"""\n'
        f"    memory = agent_state.memory\n{lines}\n"
    )


async def put(registry: Any, text: str, **fields: Any) -> pb.Tool:
    tool: pb.Tool = (
        await registry.UpsertTool(pb.UpsertToolRequest(source_code=text, **fields))
    ).tool
    return tool


async def ran(tools: Tools, name: str = "stateful", **arguments: Any) -> tuple[str, Any, Any]:
    """Runs a call as the loop does; returns its status, its text for the model, and the edits."""
    (ended,) = await tools.run((name, arguments), own=[name])
    packed = json.loads(ended.tool_return.content)
    return packed["status"], packed["message"], list(ended.memory_edits)


async def make_block(tools: Tools, blocks: Any, label: str, **fields: Any) -> None:
    await blocks.CreateBlock(
        block_pb.CreateBlockRequest(
            block=block_pb.NewBlock(label=label, **fields),
            agent_id=tools.agent.id,
            request_id=new_id("request"),
        )
    )
