"""``/v1/models`` and ``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.common.v1 import message_pb2, run_event_pb2, usage_pb2
from strata.gateway.http.calls import metadata_of, read_body
from strata.gateway.http.conversations import ExternalConversations
from strata.gateway.http.json_messages import LargeBodies
from strata.gateway.http.openai_api.agents import AgentFinder, conversation_named_by, tools_left_out
from strata.gateway.http.openai_api.answering import answering
from strata.gateway.http.openai_api.errors import ApiError
from strata.gateway.http.openai_api.replies import (
    ClientCalls,
    Finished,
    Ignored,
    Piece,
    Text,
    pieces_of,
)
from strata.gateway.http.openai_api.requests import FORMAT_PARAM, parse_chat_request
from strata.gateway.http.openai_api.responses_routes import ResponsesApi
from strata.gateway.http.openai_api.run_calls import IDEMPOTENCY_KEY, RunCalls, begun_soon
from strata.gateway.http.server_sent_events import event_stream, server_sent
from strata.shared.ids import new_id

OPENAI_PATH = "/v1/"
"""The prefix of the paths."""

_OWNER = "strata"


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
        self._agents = AgentFinder(channel)
        self._run_calls = RunCalls(channel)
        self._conversations = ExternalConversations(channel)
        self._responses = ResponsesApi(
            channel, self._agents, self._conversations, bodies, max_body_bytes=max_body_bytes
        )
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes

    def routes(self) -> Sequence[BaseRoute]:
        """Returns the routes."""
        return (
            Route("/v1/models", answering(self.models), methods=["GET"]),
            Route("/v1/models/{model:path}", answering(self.model), methods=["GET"]),
            Route("/v1/chat/completions", answering(self.chat), methods=["POST"]),
            *self._responses.routes(),
        )

    async def models(self, request: Request) -> Response:
        """Lists the agents of the project."""
        agents = await self._agents.list(metadata_of(request.headers))
        return JSONResponse({"object": "list", "data": [_model(agent) for agent in agents]})

    async def model(self, request: Request) -> Response:
        """Returns one agent."""
        agent = await self._agents.find(request.path_params["model"], metadata_of(request.headers))
        return JSONResponse(_model(agent))

    async def chat(self, request: Request) -> Response:
        """Sends the new messages of a request to an agent and returns its reply."""
        metadata = metadata_of(request.headers)
        body = await read_body(request, self._max_body_bytes)
        await self._bodies.check_key(body, metadata)
        chat_request = await self._bodies.handle(parse_chat_request, body, metadata)
        agent_input, response_format = chat_request.agent_input(), chat_request.agent_format()
        agent = await self._agents.find(chat_request.model, metadata)
        conversation_id = await conversation_named_by(
            request.headers, chat_request.user, self._conversations, agent, metadata
        )
        events = await self._run_calls.start(
            agent.id,
            conversation_id,
            agent_input,
            response_format,
            format_param=FORMAT_PARAM,
            request_id=request.headers.get(IDEMPOTENCY_KEY, ""),
            metadata=metadata,
        )
        completion = _Completion(
            chat_request.model,
            conversation_id,
            Ignored(tools_left_out(chat_request.tool_names, agent), chat_request.without_effect),
        )
        if not chat_request.stream:
            return JSONResponse(await completion.whole(pieces_of(completion.named_by(events))))
        usage = chat_request.stream_options is not None and bool(
            chat_request.stream_options.include_usage
        )
        events_from_start = await begun_soon(completion.named_by(events))
        return event_stream(completion.chunks(pieces_of(events_from_start), include_usage=usage))


class _Completion:
    """One reply in OpenAI's form.

    Args:
        model: The agent, as the client names it.
        conversation_id: The conversation.
        ignored: The parts of the request that have no effect.
    """

    def __init__(self, model: str, conversation_id: str, ignored: Ignored) -> None:
        self._model = model
        self._conversation_id = conversation_id
        # A field of the whole reply, or of the first chunk of a stream.
        self._ignored = ignored.fields()
        self._id = new_id("chatcmpl")
        self._created = int(time.time())

    async def named_by(
        self, events: AsyncIterator[run_event_pb2.RunEvent]
    ) -> AsyncIterator[run_event_pb2.RunEvent]:
        """Returns the same events, and changes the id of the reply to the id of their run."""
        async for event in events:
            if event.run_id:
                self._id = event.run_id.replace("run-", "chatcmpl-", 1)
            yield event

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
            **self._ignored,
            "choices": [choice],
            "usage": _usage(finished.usage),
        }

    async def chunks(
        self, pieces: AsyncIterator[Piece], *, include_usage: bool
    ) -> AsyncIterator[bytes]:
        """Returns the chunks of a reply that is streamed; the first has no text yet."""
        yield server_sent({**self._delta({"role": "assistant", "content": ""}), **self._ignored})
        try:
            async for piece in pieces:
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
                            yield server_sent({**head, "choices": [], "usage": _usage(piece.usage)})
        except ApiError as error:
            # The SDKs raise it, though the status was 200.
            yield server_sent(error.body)
            return
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        return server_sent(self._delta(delta, finish_reason))

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "conversation_id": self._conversation_id,
        }


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
