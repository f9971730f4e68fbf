"""Large returns of tools are converted without blocking the event loop."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.tool_execution.registry_calls import upsert
from loop_watch import assert_never_held
from mcp_support import Mcp, tool
from strata.api.tool_execution.v1 import tool_service_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="session")
LONGEST_MS = 50.0
ROWS = 20_000
SECRET = "sk-0123456789abcdefghij0123456789"
SOURCE = '''
def rows(count: int) -> list:
    """Returns rows."""
    return [{"id": n, "name": f"row {n}"} for n in range(count)]
'''


def is_cut(content: str) -> bool:
    packed = json.loads(content)
    return packed["status"] == "OK" and "exceeded the character limit" in packed["message"]


@pytest.mark.parametrize("text", [False, True])
async def test_a_large_result_of_a_server_does_not_block_the_event_loop(
    mcp: Mcp, text: bool
) -> None:
    await mcp.secret("API_KEY", SECRET)
    await mcp.program("table", tool("rows"), environment_secrets={"API_KEY": "API_KEY"})
    await mcp.run("table__rows", count=1, text=text)

    async def call() -> None:
        finished = await mcp.finish("table__rows", count=ROWS, text=text)
        assert is_cut(finished.tool_return.content)

    await assert_never_held(call, LONGEST_MS)


async def test_a_large_return_of_a_custom_tool_does_not_block_the_event_loop(
    mcp: Mcp, registry: Any
) -> None:
    await mcp.secret("API_KEY", SECRET)
    own = await upsert(registry, SOURCE, secret_names=["API_KEY"])

    await registry.RunTool(pb.RunToolRequest(tool_id=own.id, arguments_json='{"count": 1}'))

    async def call() -> None:
        arguments = json.dumps({"count": ROWS})
        ran = await registry.RunTool(pb.RunToolRequest(tool_id=own.id, arguments_json=arguments))
        assert is_cut(ran.tool_return.content)
        assert is_cut((await mcp.finish("rows", count=ROWS)).tool_return.content)

    await assert_never_held(call, LONGEST_MS)
