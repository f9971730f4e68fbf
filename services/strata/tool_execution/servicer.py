"""The services of tool execution."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.api.tool_execution.v1 import tool_service_pb2 as tool_pb
from strata.api.tool_execution.v1 import tool_service_pb2_grpc as tool_grpc
from strata.shared.db import decode_page_token, encode_page_token, page_limit
from strata.shared.errors import FieldViolation, InvalidArgumentError, NotFoundError, Reason
from strata.shared.ids import check_id
from strata.tool_execution import convert
from strata.tool_execution.domain.tools import Tool
from strata.tool_execution.engine import Engine

Context = Any
MAX_PAGE_SIZE = 500


class ToolServicer(tool_grpc.ToolServiceServicer):
    """The registry; it holds the built-in tools."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        self._by_id = {tool.id: tool for tool in tools.values()}

    async def GetTool(
        self, request: tool_pb.GetToolRequest, context: Context
    ) -> tool_pb.GetToolResponse:
        """Returns a tool by id or name."""
        if bool(request.tool_id) == bool(request.name):
            raise InvalidArgumentError(
                "Give tool_id or name.",
                violations=[FieldViolation("tool_id", "set exactly one of tool_id and name")],
            )
        if request.tool_id:
            check_id(request.tool_id, "tool", field="tool_id")
            tool = self._by_id.get(request.tool_id)
        else:
            tool = self._tools.get(request.name)
        if tool is None:
            raise _missing(request.tool_id or request.name)
        return tool_pb.GetToolResponse(tool=convert.tool_to_proto(tool))

    async def ListTools(
        self, request: tool_pb.ListToolsRequest, context: Context
    ) -> tool_pb.ListToolsResponse:
        """Lists tools by name."""
        limit = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        scope = f"ListTools {sorted(request.types)}"
        cursor = decode_page_token(scope, request.page_token, (str,))
        types = convert.types_to_domain(request.types)
        names = sorted(
            name
            for name, tool in self._tools.items()
            if (not request.types or tool.type in types)
            and (cursor is None or name > str(cursor[0]))
        )
        more = len(names) > limit
        return tool_pb.ListToolsResponse(
            tools=[convert.tool_to_proto(self._tools[name]) for name in names[:limit]],
            next_page_token=encode_page_token(scope, [names[limit - 1]]) if more else "",
        )


class ExecutionServicer(execution_grpc.ExecutionServiceServicer):
    """Resolves and runs an agent's tools."""

    def __init__(self, tools: Mapping[str, Tool], engine: Engine) -> None:
        self._tools = dict(tools)
        self._engine = engine

    async def ResolveTools(
        self, request: execution_pb.ResolveToolsRequest, context: Context
    ) -> execution_pb.ResolveToolsResponse:
        """Returns the definitions of tools by name."""
        for name in request.names:
            if name not in self._tools:
                raise _missing(name)
        tools = [self._tools[name] for name in request.names]
        versions = " ".join(f"{tool.name}@{tool.version}" for tool in tools)
        revision = hashlib.sha256(versions.encode()).hexdigest()[:16]
        if revision == request.if_revision:
            return execution_pb.ResolveToolsResponse(not_changed=True, revision=revision)
        return execution_pb.ResolveToolsResponse(
            revision=revision, tools=[convert.tool_to_proto(tool) for tool in tools]
        )

    async def ExecuteTools(
        self, request: execution_pb.ExecuteToolsRequest, context: Context
    ) -> AsyncIterator[execution_pb.ExecuteToolsResponse]:
        """Runs the calls of one reply."""
        calls, caller = convert.to_calls(request)
        events = self._engine.run(calls, caller, frozenset(request.allowed_tools))
        async with aclosing(events):
            async for event in events:
                yield convert.event_to_proto(event, self._tools)


def _missing(name: str) -> NotFoundError:
    return NotFoundError(
        f"Tool {name} does not exist.", reason=Reason.TOOL_NOT_FOUND, metadata={"name": name}
    )
