"""The client of tool execution. Tool definitions are cached by revision."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio

from strata.agent_loop.clients.revision_cache import RevisionCache
from strata.agent_loop.convert.tools import (
    batch_to_proto,
    code_answer_to_proto,
    code_batch_to_proto,
    code_call_from_proto,
    left_out_of,
    tool_event_from_proto,
    toolset_from_proto,
)
from strata.agent_loop.domain.tools import CodeToolAccess, ToolBatch, ToolEvent, ToolSet
from strata.api.tool_execution.v1 import execution_service_pb2 as execution_pb
from strata.api.tool_execution.v1 import execution_service_pb2_grpc as execution_grpc
from strata.shared.bidi_call import call_and_answer
from strata.shared.context import current_project
from strata.shared.logs import get_logger
from strata.shared.record_fields import replace
from strata.shared.tool_catalogue import CODE_TOOLS

_TOOLSETS = 256

_log = get_logger(__name__)

_NestingMessage = execution_pb.ExecuteToolsWithCallsRequest


class ToolClient:
    """Implements `domain.ports.Tools`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = execution_grpc.ExecutionServiceStub(channel)
        self._toolsets: RevisionCache[ToolSet] = RevisionCache(_TOOLSETS)

    async def resolve(
        self,
        names: Sequence[str],
        *,
        skip_missing: bool = False,
        run_id: str = "",
        max_bytes: int = 0,
    ) -> ToolSet:
        """Returns the definitions of tools; cached ones if they did not change."""
        if not names:
            return ToolSet(())
        key = (current_project(), tuple(names))
        cached = self._toolsets.get(key)
        request = execution_pb.ResolveToolsRequest(
            names=names,
            if_revision=cached[0] if cached is not None else "",
            skip_missing=skip_missing,
            run_id=run_id,
            max_schema_bytes=max_bytes,
        )
        response = await self._stub.ResolveTools(request)
        for server in response.servers:
            if server.problem:
                _log.warning(
                    "tools of an MCP server are left out",
                    run_id=run_id,
                    name=server.name,
                    problem=server.problem,
                )
        if response.not_changed and cached is not None:
            return replace(cached[1], left_out=left_out_of(response))
        toolset = toolset_from_proto(response)
        self._toolsets.put(key, response.revision, toolset)
        return toolset

    async def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        """Runs calls; closing the generator cancels the stream, which kills running calls."""
        if batch.code_access is not None:
            async with aclosing(self._execute_code(batch, batch.code_access)) as events:
                async for event in events:
                    yield event
            return
        # Waits for a restarting executor; calls that it lost are reported as errors.
        call = self._stub.ExecuteTools(batch_to_proto(batch), wait_for_ready=True)
        try:
            async for response in call:
                tool_event = tool_event_from_proto(response)
                if tool_event is not None:
                    yield tool_event
        finally:
            call.cancel()

    async def _execute_code(
        self, batch: ToolBatch, code_access: CodeToolAccess
    ) -> AsyncGenerator[ToolEvent, None]:
        async def answered(nested_call: execution_pb.NestedCall) -> _NestingMessage:
            answer = await code_access.answer(code_call_from_proto(nested_call))
            return code_answer_to_proto(nested_call.number, answer)

        def answer(
            response: execution_pb.ExecuteToolsWithCallsResponse,
        ) -> Coroutine[Any, Any, _NestingMessage] | None:
            return answered(response.call) if response.HasField("call") else None

        def settles(response: execution_pb.ExecuteToolsWithCallsResponse) -> bool:
            # After the code has ended, no answer is expected.
            return response.response.finished.tool_return.name in CODE_TOOLS

        first = code_batch_to_proto(batch, code_access)
        method = functools.partial(self._stub.ExecuteToolsWithCalls, wait_for_ready=True)
        responses = call_and_answer(method, first, answer, settles)
        async with aclosing(responses):
            async for response in responses:
                event = tool_event_from_proto(response.response)
                if event is not None:
                    yield event
