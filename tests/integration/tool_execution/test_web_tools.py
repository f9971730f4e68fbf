"""The web tools over ``ExecuteTools`` and in the registry, with default settings."""

from __future__ import annotations

import pytest

from integration.tool_execution.conftest import Tools
from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import tool_pb2
from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as pb_grpc

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_private_addresses_are_never_connected_to(tools: Tools) -> None:
    for url in ("http://169.254.169.254/", "http://127.0.0.1/", "http://localhost/"):
        assert "may not be reached" in await tools.refused("fetch_webpage", url=url)


async def test_an_unconfigured_search_has_its_own_error_message(tools: Tools) -> None:
    (ended,) = await tools.run(("web_search", {"query": "moon"}))
    assert "not set up" in ended.tool_return.content
    assert ended.tool_return.provenance == common.PROVENANCE_SYSTEM


async def test_web_tools_are_listed_as_read_only_built_in_tools(tools: Tools) -> None:
    execution = pb_grpc.ExecutionServiceStub(tools.services.channel("tool_execution"))
    request = pb.ResolveToolsRequest(names=["fetch_webpage", "web_search"])
    for tool in (await execution.ResolveTools(request)).tools:
        assert tool.type == tool_pb2.TOOL_TYPE_BUILTIN
        assert tool.effect == tool_pb2.TOOL_EFFECT_READ_ONLY
        assert tool.enable_parallel_execution
