"""The calls that start a run of an agent and give its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio

from strata.api.common.v1 import message_pb2, response_format_pb2, run_event_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.api.gateway.v1 import run_service_pb2_grpc
from strata.gateway.http.calls import RunEvents, approvals_of, events_of_run
from strata.gateway.http.openai_api.errors import ApiError, of_call
from strata.gateway.http.openai_api.inputs import AgentInput, ClientToolResult

IDEMPOTENCY_KEY = "idempotency-key"
"""The header with the id of a request: a repeated one gives the events of the first run."""

_FORMAT_FIELD = "response_format.json_schema"
# Long enough for a refusal, and shorter than clients wait for the headers of a response.
_BEGIN_S = 3.0


class RunCalls:
    """Starts runs.

    Args:
        channel: Calls the gateway.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._runs: Any = run_service_pb2_grpc.RunServiceStub(channel)

    async def start(
        self,
        agent_id: str,
        conversation_id: str,
        agent_input: AgentInput,
        response_format: response_format_pb2.ResponseFormat | None,
        *,
        format_param: str,
        request_id: str,
        metadata: Any,
    ) -> RunEvents:
        """Returns the events of a new run.

        Args:
            agent_id: The agent.
            conversation_id: Its conversation.
            agent_input: Its input.
            response_format: The required format of the reply to messages; None for free text.
            format_param: The parameter with the schema of `response_format`.
            request_id: A repeated id returns the same run; empty for a new run.
            metadata: The caller's credentials.

        Raises:
            ApiError: No open request waits for the tool results.
            AioRpcError: A call failed.
        """
        if agent_input.results:
            call = self._runs.RespondToApproval(
                await self._answer(agent_id, conversation_id, agent_input, request_id, metadata),
                metadata=metadata,
            )
        else:
            call = self._runs.SendMessage(
                pb.SendMessageRequest(
                    request_id=request_id,
                    agent_id=agent_id,
                    conversation_id=conversation_id,
                    messages=agent_input.messages,
                    response_format=response_format,
                ),
                metadata=metadata,
            )
        return events_of(call, lambda field: _param_of(field, agent_input, format_param))

    async def _answer(
        self,
        agent_id: str,
        conversation_id: str,
        agent_input: AgentInput,
        request_id: str,
        metadata: Any,
    ) -> pb.RespondToApprovalRequest:
        contents = _by_call(agent_input.results)
        approvals = self._approvals(agent_id, conversation_id, request_id, metadata)
        async for approval in approvals:
            calls = [call.tool_call_id for call in approval.request.tool_calls]
            if contents.keys().isdisjoint(calls):
                continue
            if contents.keys() != set(calls):
                raise ApiError(
                    f"Send a result for each of the calls {', '.join(calls)}, and for no other.",
                    param=agent_input.param,
                )
            return pb.RespondToApprovalRequest(
                request_id=request_id,
                approval_id=approval.request.approval_id,
                decisions=[
                    message_pb2.ApprovalDecision(tool_call_id=call, client_return=contents[call])
                    for call in calls
                ],
            )
        raise ApiError(
            "The conversation does not wait for results of these tool calls.",
            param=agent_input.param,
            code="tool_call_not_found",
        )

    async def _approvals(
        self, agent_id: str, conversation_id: str, request_id: str, metadata: Any
    ) -> AsyncIterator[pb.Approval]:
        """Yields the open requests for results, then those that this request may have answered."""
        for include_decided in (False, True) if request_id else (False,):
            async for approval in approvals_of(
                self._runs,
                agent_id,
                metadata,
                conversation_id=conversation_id,
                include_decided=include_decided,
            ):
                yield approval


def _by_call(results: Sequence[ClientToolResult]) -> dict[str, str]:
    return {result.tool_call_id: result.content for result in results}


def _param_of(field: str, agent_input: AgentInput, format_param: str) -> str:
    """Returns the part of an HTTP request that a field of the call's request was made of."""
    if field == "request_id":
        return IDEMPOTENCY_KEY
    if field.startswith(_FORMAT_FIELD):
        return format_param + field.removeprefix(_FORMAT_FIELD).replace("_json", "")
    return agent_input.param_of(field)


async def events_of(call: Any, param_of: Callable[[str], str] | None = None) -> RunEvents:
    """Returns the events of a call that streams a run.

    Args:
        call: The call.
        param_of: Returns the part of an HTTP request that a field of the call's request was made
            of.

    Raises:
        ApiError: The call failed.
    """
    try:
        async with aclosing(events_of_run(call)) as events:
            async for event in events:
                yield event
    except grpc.aio.AioRpcError as error:
        raise of_call(error, param_of=param_of) from error


async def begun_soon(events: AsyncIterator[run_event_pb2.RunEvent]) -> RunEvents:
    """Returns the same events once the first one has arrived, or after a short wait.

    So a refused request gets an HTTP status, and a run that waits for an earlier one does not delay
    the start of the stream, for which clients and proxies wait.

    Raises:
        ApiError: The request is refused.
    """
    first = asyncio.ensure_future(anext(events))
    if (await asyncio.wait((first,), timeout=_BEGIN_S))[0]:
        first.result()
    return _after(first, events)


async def _after(
    first: asyncio.Future[run_event_pb2.RunEvent],
    later_events: AsyncIterator[run_event_pb2.RunEvent],
) -> RunEvents:
    try:
        yield await first
        async for event in later_events:
            yield event
    finally:
        first.cancel()
