"""ExecutionService: resolves and runs an agent's tools."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any

from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as pb_grpc
from strata.tool_execution import convert
from strata.tool_execution.builtin.code import CodeTools
from strata.tool_execution.custom.agent_memory import AgentMemory
from strata.tool_execution.custom.executor import McpRunner, OwnTools, SandboxRunner
from strata.tool_execution.domain.registry import ToolStore, not_built, tool_missing
from strata.tool_execution.domain.tools import Tool, ToolType
from strata.tool_execution.engine import Engine

Context = Any
# Built-in tools that need the sandbox too.
_SANDBOXED = CodeTools.names


class ExecutionServicer(pb_grpc.ExecutionServiceServicer):
    """Resolves and runs an agent's tools. Of an agent with built-in tools alone nothing is read.

    Args:
        tools: The built-in tools by name.
        engine: Runs calls.
        store: The project's own tools.
        runner: Runs those.
        mcp: Runs those of MCP servers.
        memory: For tools that take ``agent_state``.
        prepare: Is called when an agent has such tools, before any is called.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        engine: Engine,
        store: ToolStore,
        runner: SandboxRunner,
        mcp: McpRunner,
        memory: AgentMemory,
        prepare: Callable[[], None],
    ) -> None:
        self._tools = dict(tools)
        self._engine = engine
        self._store = store
        self._runner = runner
        self._mcp = mcp
        self._memory = memory
        self._prepare = prepare

    async def ResolveTools(
        self, request: pb.ResolveToolsRequest, context: Context
    ) -> pb.ResolveToolsResponse:
        """Returns the definitions of tools by name."""
        known = await self._known(request.names)
        missing = [name for name in request.names if name not in known]
        if missing and not request.skip_missing:
            raise tool_missing(missing[0])
        tools = [known[name] for name in request.names if name in known]
        for tool in tools:
            if tool.type is ToolType.CLIENT:
                raise not_built(
                    "client tools",
                    f"{tool.name} is run by the client; agents cannot have one in this release.",
                )
        if any(tool.type is ToolType.CUSTOM or tool.name in _SANDBOXED for tool in tools):
            self._prepare()
        versions = " ".join(f"{tool.name}@{tool.version}" for tool in tools)
        revision = hashlib.sha256(versions.encode()).hexdigest()[:16]
        if revision == request.if_revision:
            return pb.ResolveToolsResponse(not_changed=True, revision=revision)
        return pb.ResolveToolsResponse(revision=revision, tools=[_offered(tool) for tool in tools])

    async def ExecuteTools(
        self, request: pb.ExecuteToolsRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteToolsResponse]:
        """Runs the calls of one reply."""
        calls, caller = convert.to_calls(request)
        allowed = frozenset(request.allowed_tools)
        own = await self._own({call.name for call in calls} & allowed)
        known = self._tools if own is None else {**own.tools, **self._tools}
        events = self._engine.run(calls, caller, allowed, own)
        async with aclosing(events):
            async for event in events:
                yield convert.event_to_proto(event, known)

    async def _known(self, names: Collection[str]) -> Mapping[str, Tool]:
        own = {name for name in names if name not in self._tools}
        return {**await self._store.named(own), **self._tools} if own else self._tools

    async def _own(self, names: Collection[str]) -> OwnTools | None:
        own = {name for name in names if name not in self._tools}
        if not own:
            return None
        runnable = await self._store.runnable(own)
        return OwnTools(runnable, self._runner, self._mcp, self._memory)


def _offered(tool: Tool) -> Any:
    wire = convert.tool_to_proto(tool)
    # The loop has no use for it, and it may be long.
    wire.ClearField("source_code")
    return wire
