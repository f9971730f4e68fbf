"""gRPC servicer of ExecutionService: resolves and runs the tools of agents."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from strata.api.tool_execution.v1 import execution_service_pb2 as pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as pb_grpc
from strata.protocol.errors import invalid_field
from strata.tool_execution.builtin.code import CodeTools
from strata.tool_execution.builtin.code_with_tools import NestedCaller
from strata.tool_execution.convert import execution as convert
from strata.tool_execution.custom.executor import OwnTools, ToolRunners
from strata.tool_execution.domain.registry import ToolStore, tool_missing
from strata.tool_execution.domain.tools import Tool, ToolType
from strata.tool_execution.execution.engine import CallExecutor, Executor
from strata.tool_execution.mcp.server_tools import ServerToolNames
from strata.tool_execution.servicers.relay import Relay

Context = Any
# Built-in tools that need the sandbox.
_SANDBOXED = CodeTools.names


class ExecutionServicer(pb_grpc.ExecutionServiceServicer):
    """Resolves and runs tools of agents. Reads nothing for agents with only built-in tools.

    Args:
        tools: The built-in tools by name.
        engine: Runs calls.
        store: The project's own tools.
        runners: Runs the project's own tools.
        prepare: Called when an agent has tools that need the sandbox, before the first call.
        nesting: Creates the executor of code that calls tools, from the maker of nested calls and
            the parameter names by tool name.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        engine: CallExecutor,
        store: ToolStore,
        runners: ToolRunners,
        *,
        prepare: Callable[[], None],
        nesting: Callable[[NestedCaller, Mapping[str, Sequence[str]]], Executor],
    ) -> None:
        self._tools = dict(tools)
        self._engine = engine
        self._store = store
        self._runners = runners
        self._prepare = prepare
        self._nesting = nesting
        self._resolver = ServerToolNames(store, runners.mcp, self._known)

    async def ResolveTools(
        self, request: pb.ResolveToolsRequest, context: Context
    ) -> pb.ResolveToolsResponse:
        """Returns the definitions of tools by name."""
        chosen = await self._resolver.choose(
            request.names,
            request.run_id,
            skip_missing=request.skip_missing,
            max_bytes=max(0, request.max_schema_bytes),
        )
        single, of_servers, servers = chosen.single, chosen.of_servers, chosen.servers
        names = [*single, *of_servers]
        tools_by_name = chosen.definitions
        if not tools_by_name or not {*of_servers} <= {*tools_by_name}:
            tools_by_name = await self._known(names, of_servers if request.run_id else ())
        missing = [name for name in single if name not in tools_by_name]
        if missing and not request.skip_missing:
            raise tool_missing(missing[0])
        tools = [tools_by_name[name] for name in names if name in tools_by_name]
        if any(tool.type is ToolType.CUSTOM or tool.name in _SANDBOXED for tool in tools):
            self._prepare()
        versions = " ".join(f"{tool.name}@{tool.version}" for tool in tools)
        revision = hashlib.sha256(versions.encode()).hexdigest()[:16]
        if revision == request.if_revision:
            return pb.ResolveToolsResponse(not_changed=True, revision=revision, servers=servers)
        return pb.ResolveToolsResponse(
            revision=revision, tools=[_offered(tool) for tool in tools], servers=servers
        )

    async def ExecuteTools(
        self, request: pb.ExecuteToolsRequest, context: Context
    ) -> AsyncIterator[pb.ExecuteToolsResponse]:
        """Runs the calls of one reply."""
        async with aclosing(self._execute(request)) as responses:
            async for response in responses:
                yield response

    async def ExecuteToolsWithCalls(
        self,
        request_iterator: AsyncIterator[pb.ExecuteToolsWithCallsRequest],
        context: Context,
    ) -> AsyncIterator[pb.ExecuteToolsWithCallsResponse]:
        """Runs the calls of one reply; sends nested calls of their code to the client."""
        messages = aiter(request_iterator)
        first = await anext(messages, None)
        if first is None or not first.HasField("request"):
            raise invalid_field("request", "must be set in the first message")
        events: asyncio.Queue[pb.ExecuteToolsWithCallsResponse | None] = asyncio.Queue()

        def send(call: pb.NestedCall) -> None:
            events.put_nowait(pb.ExecuteToolsWithCallsResponse(call=call))

        def ended(task: asyncio.Task[None]) -> None:
            # The stream ends when all calls have ended, or when a client message is invalid.
            if task is working or _failed(task):
                events.put_nowait(None)

        relay = Relay(send)
        nesting = self._nesting(relay, convert.nested_tools_to_domain(first.request.tools))

        async def work() -> None:
            async with aclosing(self._execute(first.request.request, [nesting])) as responses:
                async for response in responses:
                    events.put_nowait(pb.ExecuteToolsWithCallsResponse(response=response))

        working = asyncio.create_task(work())
        reading = asyncio.create_task(relay.read(messages))
        working.add_done_callback(ended)
        reading.add_done_callback(ended)
        try:
            while (event := await events.get()) is not None:
                yield event
            for task in (reading, working):
                if _failed(task):
                    task.result()
        finally:
            for task in (working, reading):
                task.cancel()
            await asyncio.gather(working, reading, return_exceptions=True)

    async def _execute(
        self, request: pb.ExecuteToolsRequest, more: Sequence[Executor] = ()
    ) -> AsyncGenerator[pb.ExecuteToolsResponse, None]:
        calls, caller = convert.to_calls(request)
        allowed = frozenset(request.allowed_tools)
        own = await self._own({call.name for call in calls} & allowed)
        callable_tools = self._tools if own is None else {**own.tools, **self._tools}
        events = self._engine.run(calls, caller, allowed, own, more)
        async with aclosing(events):
            async for event in events:
                yield convert.event_to_proto(event, callable_tools)

    async def _known(
        self, names: Collection[str], kept: Collection[str] = ()
    ) -> Mapping[str, Tool]:
        own = {name for name in names if name not in self._tools}
        return {**await self._store.named(own, kept), **self._tools} if own else self._tools

    async def _own(self, names: Collection[str]) -> OwnTools | None:
        own = {name for name in names if name not in self._tools}
        if not own:
            return None
        runnable = await self._store.runnable(own)
        return OwnTools(runnable, self._runners)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _offered(tool: Tool) -> Any:
    wire = convert.tool_to_proto(tool)
    # The agent loop does not need it, and it may be long.
    wire.ClearField("source_code")
    return wire
