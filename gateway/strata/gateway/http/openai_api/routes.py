"""``/v1/models`` and ``/v1/chat/completions``."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

import grpc.aio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.api.gateway.v1 import run_service_pb2, run_service_pb2_grpc
from strata.gateway.http.calls import BodyTooLargeError, metadata_of, read_body
from strata.gateway.http.json_messages import LargeBodies
from strata.gateway.http.openai_api.conversations import UserConversations
from strata.gateway.http.openai_api.errors import ApiError, of_call
from strata.gateway.http.openai_api.replies import ClientCalls, Finished, Piece, Text, pieces_of
from strata.gateway.http.openai_api.requests import (
    ChatRequest,
    ToolResult,
    message_inputs,
    new_messages,
    parse_chat_request,
    response_format_of,
    tool_results,
)
from strata.shared.ids import new_id

IDEMPOTENCY_KEY = "idempotency-key"

_AGENTS_PAGE = 500
_APPROVALS_PAGE = 100
# Shorter than the idle times of proxies and clients.
_KEEP_ALIVE_S = 15.0
_OWNER = "strata"

Handler = Callable[[Request], Awaitable[Response]]


class OpenAiApi:
    """Serves the API.

    Args:
        channel: Calls the gateway.
        bodies: Handles large requests.
        max_body_bytes: Larger requests are refused.
    """

    def __init__(
        self, channel: grpc.aio.Channel, bodies: LargeBodies, *, max_body_bytes: int
    ) -> None:
        self._agents: Any = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._runs: Any = run_service_pb2_grpc.RunServiceStub(channel)
        self._conversations = UserConversations(channel)
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes

    def routes(self) -> Sequence[BaseRoute]:
        """Returns the routes."""
        return (
            Route("/v1/models", _answering(self.models), methods=["GET"]),
            Route("/v1/models/{model:path}", _answering(self.model), methods=["GET"]),
            Route("/v1/chat/completions", _answering(self.chat), methods=["POST"]),
        )

    async def models(self, request: Request) -> Response:
        """Lists the agents of the project."""
        metadata = metadata_of(request.headers)
        agents: list[agent_service_pb2.Agent] = []
        token = ""
        while True:
            page = await self._agents.ListAgents(
                agent_service_pb2.ListAgentsRequest(page_size=_AGENTS_PAGE, page_token=token),
                metadata=metadata,
            )
            # The agents that tend the memory of others are not for talking to.
            agents += (agent for agent in page.agents if not agent.tends_agent_id)
            token = page.next_page_token
            if not token:
                break
        return JSONResponse({"object": "list", "data": [_model(agent) for agent in agents]})

    async def model(self, request: Request) -> Response:
        """Returns one agent."""
        agent = await self._agent(request.path_params["model"], metadata_of(request.headers))
        return JSONResponse(_model(agent))

    async def chat(self, request: Request) -> Response:
        """Sends the new messages of a request to an agent and returns its reply."""
        metadata = metadata_of(request.headers)
        body = await read_body(request, self._max_body_bytes)
        await self._bodies.check_key(body, metadata)
        asked = await self._bodies.handle(parse_chat_request, body)
        agent = await self._agent(asked.model, metadata)
        _check_tools(asked, agent)
        conversation_id = (
            await self._conversations.find(agent.id, asked.user, metadata)
            if asked.user
            else agent.default_conversation_id
        )
        request_id = request.headers.get(IDEMPOTENCY_KEY, "")
        messages = new_messages(asked.messages)
        results = tool_results(messages)
        if results:
            call = await self._answer(agent.id, conversation_id, results, request_id, metadata)
        else:
            call = self._runs.SendMessage(
                run_service_pb2.SendMessageRequest(
                    request_id=request_id,
                    agent_id=agent.id,
                    conversation_id=conversation_id,
                    messages=message_inputs(messages),
                    response_format=response_format_of(asked.response_format),
                ),
                metadata=metadata,
            )
        completion = _Completion(asked.model, conversation_id)
        pieces = pieces_of(completion.events(call))
        if asked.stream:
            usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
            return await completion.streamed(pieces, include_usage=usage)
        return JSONResponse(await completion.whole(pieces))

    async def _agent(self, model: str, metadata: Any) -> agent_service_pb2.Agent:
        by_id = model.startswith("agent-")
        try:
            response = await self._agents.GetAgent(
                agent_service_pb2.GetAgentRequest(agent_id=model)
                if by_id
                else agent_service_pb2.GetAgentRequest(name=model),
                metadata=metadata,
            )
        except grpc.aio.AioRpcError as error:
            failure = of_call(error, "model")
            if error.code() is grpc.StatusCode.NOT_FOUND:
                failure.code = "model_not_found"
                failure.message = (
                    f"There is no agent '{model}'. A model is an agent, by name or id."
                )
            raise failure from error
        agent: agent_service_pb2.Agent = response.agent
        return agent

    async def _answer(
        self,
        agent_id: str,
        conversation_id: str,
        results: Sequence[ToolResult],
        request_id: str,
        metadata: Any,
    ) -> Any:
        """Starts the call that gives the agent what the client's tools returned."""
        returned = {result.tool_call_id: result.content for result in results}
        approval = await self._open_approval(agent_id, conversation_id, set(returned), metadata)
        decisions = [
            message_pb2.ApprovalDecision(
                tool_call_id=call.tool_call_id, client_return=returned[call.tool_call_id]
            )
            for call in approval.request.tool_calls
        ]
        return self._runs.RespondToApproval(
            run_service_pb2.RespondToApprovalRequest(
                request_id=request_id,
                approval_id=approval.request.approval_id,
                decisions=decisions,
            ),
            metadata=metadata,
        )

    async def _open_approval(
        self, agent_id: str, conversation_id: str, answered: set[str], metadata: Any
    ) -> run_service_pb2.Approval:
        token = ""
        while True:
            page = await self._runs.ListApprovals(
                run_service_pb2.ListApprovalsRequest(
                    agent_id=agent_id, page_size=_APPROVALS_PAGE, page_token=token
                ),
                metadata=metadata,
            )
            approval: run_service_pb2.Approval
            for approval in page.approvals:
                calls = {call.tool_call_id for call in approval.request.tool_calls}
                if approval.conversation_id != conversation_id or not calls & answered:
                    continue
                if calls != answered:
                    raise ApiError(
                        "Send a result for each of the calls"
                        f" {', '.join(sorted(calls))}, and for no other.",
                        param="messages",
                    )
                return approval
            token = page.next_page_token
            if not token:
                raise ApiError(
                    "The conversation waits for no result of these tool calls.",
                    param="messages",
                    code="tool_call_not_found",
                )


class _Completion:
    """One reply in OpenAI's form."""

    def __init__(self, model: str, conversation_id: str) -> None:
        self._model = model
        self._conversation_id = conversation_id
        self._id = new_id("chatcmpl")
        self._created = int(time.time())

    async def events(self, call: Any) -> AsyncIterator[run_event_pb2.RunEvent]:
        """Returns the events of a call; the id of the reply is that of the run from then on.

        Raises:
            ApiError: The call failed.
        """
        try:
            async for response in call:
                event: run_event_pb2.RunEvent = response.event
                if event.run_id:
                    self._id = event.run_id.replace("run-", "chatcmpl-", 1)
                yield event
        except grpc.aio.AioRpcError as error:
            raise of_call(error) from error
        finally:
            # If the client has left, the call is over; the run goes on.
            call.cancel()

    async def whole(self, pieces: AsyncIterator[Piece]) -> dict[str, Any]:
        """Returns the body of a reply that is not streamed."""
        text = ""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        finished = Finished("stop", usage_pb2.Usage())
        async for piece in pieces:
            match piece:
                case Text():
                    text += piece.text
                case ClientCalls():
                    message["tool_calls"] = [_tool_call(call) for call in piece.calls]
                case Finished():
                    finished = piece
        message["content"] = text or (None if "tool_calls" in message else "")
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finished.reason,
        }
        return {
            **self._head("chat.completion"),
            "choices": [choice],
            "usage": _usage(finished.usage),
        }

    async def streamed(self, pieces: AsyncIterator[Piece], *, include_usage: bool) -> Response:
        """Returns a stream of chunks; the status is that of an error before the first one."""
        first = await anext(pieces)
        chunks = self._chunks(first, pieces, include_usage=include_usage)
        return StreamingResponse(
            _kept_alive(chunks),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _chunks(
        self, first: Piece, pieces: AsyncIterator[Piece], *, include_usage: bool
    ) -> AsyncIterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})
        piece: Piece | None = first
        try:
            while piece is not None:
                match piece:
                    case Text():
                        yield self._chunk({"content": piece.text})
                    case ClientCalls():
                        calls = [
                            {"index": index, **_tool_call(call)}
                            for index, call in enumerate(piece.calls)
                        ]
                        yield self._chunk({"tool_calls": calls})
                    case Finished():
                        yield self._chunk({}, piece.reason)
                        if include_usage:
                            head = self._head("chat.completion.chunk")
                            yield _event({**head, "choices": [], "usage": _usage(piece.usage)})
                piece = await anext(pieces, None)
        except ApiError as error:
            # The SDKs raise it, though the status was 200.
            yield _event(error.body)
            return
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "conversation_id": self._conversation_id,
        }


def _answering(handle: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except grpc.aio.AioRpcError as error:
            failure = of_call(error)
        except BodyTooLargeError as error:
            failure = ApiError(str(error), status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        except ApiError as error:
            failure = error
        return JSONResponse(failure.body, status_code=failure.status)

    return answer


def _check_tools(asked: ChatRequest, agent: agent_service_pb2.Agent) -> None:
    for tool in asked.tools or ():
        if tool.function.name not in agent.tools:
            raise ApiError(
                f"The agent has no tool '{tool.function.name}'. Create it with the type CLIENT and"
                " give it to the agent; tools are not taken from a request.",
                param="tools",
                code="unknown_tool",
            )


async def _kept_alive(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Adds comments while an agent works without a word, so that nobody takes it for dead."""
    while True:
        waiting = asyncio.ensure_future(anext(chunks, None))
        try:
            while not (await asyncio.wait((waiting,), timeout=_KEEP_ALIVE_S))[0]:
                yield b": the agent is working\n\n"
            chunk = waiting.result()
        finally:
            waiting.cancel()
        if chunk is None:
            return
        yield chunk


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _model(agent: agent_service_pb2.Agent) -> dict[str, Any]:
    return {
        "id": agent.name,
        "object": "model",
        "created": agent.create_time.seconds,
        "owned_by": _OWNER,
        "agent_id": agent.id,
        "description": agent.description,
    }


def _tool_call(call: message_pb2.ToolCallPart) -> dict[str, Any]:
    return {
        "id": call.tool_call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _usage(usage: usage_pb2.Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
