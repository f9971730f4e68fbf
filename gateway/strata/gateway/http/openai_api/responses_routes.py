"""``/v1/responses``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

import grpc
import grpc.aio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.gateway.v1 import run_service_pb2 as pb
from strata.api.gateway.v1 import run_service_pb2_grpc
from strata.gateway.http.calls import after_first, metadata_of, read_body
from strata.gateway.http.conversations import ExternalConversations
from strata.gateway.http.json_messages import LargeBodies
from strata.gateway.http.openai_api.agents import AgentFinder, conversation_named_by, tools_left_out
from strata.gateway.http.openai_api.answering import answering
from strata.gateway.http.openai_api.errors import ApiError, RunFailedError
from strata.gateway.http.openai_api.replies import Ignored, Piece, pieces_of
from strata.gateway.http.openai_api.responses import (
    Event,
    ResponseHead,
    ResponseWriter,
    run_id_of,
)
from strata.gateway.http.openai_api.responses_requests import (
    FORMAT_PARAM,
    ResponsesRequest,
    parse_responses_request,
)
from strata.gateway.http.openai_api.run_calls import (
    IDEMPOTENCY_KEY,
    RunCalls,
    events_of,
)
from strata.gateway.http.server_sent_events import event_stream, server_sent
from strata.protocol.errors import Reason
from strata.shared.ids import is_id

_OPEN_STATES = {
    pb.RUN_STATE_QUEUED: "queued",
    pb.RUN_STATE_RUNNING: "in_progress",
    pb.RUN_STATE_CANCELLING: "in_progress",
}
# The name of this error reason at the gateway, in lower case.
_UNKNOWN_CONVERSATION = Reason.CONVERSATION_NOT_FOUND.value.lower()


class ResponsesApi:
    """Serves the Responses API: a response is a run.

    Args:
        channel: Calls the gateway.
        agents: Finds agents.
        conversations: Finds the conversations of users.
        bodies: Handles large requests.
        max_body_bytes: Larger requests are refused.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        agents: AgentFinder,
        conversations: ExternalConversations,
        bodies: LargeBodies,
        *,
        max_body_bytes: int,
    ) -> None:
        self._runs: Any = run_service_pb2_grpc.RunServiceStub(channel)
        self._run_calls = RunCalls(channel)
        self._agents = agents
        self._conversations = conversations
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes

    def routes(self) -> Sequence[BaseRoute]:
        """Returns the routes."""
        response_path = "/v1/responses/{response}"
        return (
            Route("/v1/responses", answering(self.create), methods=["POST"]),
            Route(response_path, answering(self.retrieve), methods=["GET"]),
            Route(f"{response_path}/cancel", answering(self.cancel), methods=["POST"]),
        )

    async def create(self, request: Request) -> Response:
        """Sends the new input of a request to an agent and returns its reply."""
        metadata = metadata_of(request.headers)
        body = await read_body(request, self._max_body_bytes)
        await self._bodies.check_key(body, metadata)
        responses_request = await self._bodies.handle(parse_responses_request, body, metadata)
        agent_input, response_format = (
            responses_request.agent_input(),
            responses_request.agent_format(),
        )
        agent = await self._agents.find(responses_request.model, metadata)
        conversation_id = await self._conversation(request, responses_request, agent, metadata)
        events = await self._run_calls.start(
            agent.id,
            conversation_id,
            agent_input,
            response_format,
            format_param=FORMAT_PARAM,
            request_id=request.headers.get(IDEMPOTENCY_KEY, ""),
            metadata=metadata,
        )
        # The first event names the run, so a request that is refused has an HTTP status.
        try:
            first = await anext(events)
        except ApiError as error:
            if error.code == _UNKNOWN_CONVERSATION:
                raise _no_conversation(conversation_id) from error
            raise
        head = ResponseHead(
            run_id=first.run_id,
            model=responses_request.model,
            conversation_id=conversation_id,
            created_at=int(time.time()),
            previous_response_id=responses_request.previous_response_id,
            text_format=responses_request.text_format,
            ignored=Ignored(
                tools_left_out(responses_request.tool_names, agent),
                responses_request.without_effect,
            ),
        )
        writer = ResponseWriter(head)
        pieces = pieces_of(after_first(first, events))
        if responses_request.stream:
            return event_stream(_streamed(writer, pieces))
        async for piece in pieces:
            writer.add(piece)
        return JSONResponse(writer.body())

    async def retrieve(self, request: Request) -> Response:
        """Returns the response of a run, from its stored events."""
        if request.query_params.get("stream") == "true":
            raise ApiError(
                "A stored response is not streamed; RunService.StreamRun follows a run.",
                param="stream",
                code="unsupported_parameter",
            )
        metadata = metadata_of(request.headers)
        run = await self._run(request.path_params["response"], metadata)
        return JSONResponse(await self._response(run, metadata))

    async def cancel(self, request: Request) -> Response:
        """Cancels a run and returns its response."""
        metadata = metadata_of(request.headers)
        run = await self._run(request.path_params["response"], metadata)
        cancelled = await self._runs.CancelRun(
            pb.CancelRunRequest(run_id=run.id), metadata=metadata
        )
        return JSONResponse(await self._response(cancelled.run, metadata))

    async def _conversation(
        self,
        request: Request,
        responses_request: ResponsesRequest,
        agent: agent_service_pb2.Agent,
        metadata: Any,
    ) -> str:
        """Returns the id of the conversation that a request is part of."""
        if responses_request.previous_response_id is not None:
            return await self._conversation_of(
                responses_request.previous_response_id, agent, metadata
            )
        conversation_id = responses_request.conversation_id
        if conversation_id is not None:
            if not is_id(conversation_id, "conversation"):
                raise _no_conversation(conversation_id)
            return conversation_id
        return await conversation_named_by(
            request.headers, responses_request.user, self._conversations, agent, metadata
        )

    async def _conversation_of(
        self, previous: str, agent: agent_service_pb2.Agent, metadata: Any
    ) -> str:
        unknown = ApiError(
            f"The agent has no response '{previous}'.",
            status=HTTPStatus.NOT_FOUND,
            param="previous_response_id",
            code="previous_response_not_found",
        )
        try:
            run = await self._run(previous, metadata)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise unknown from error
            raise
        if run.agent_id != agent.id:
            raise unknown
        conversation_id: str = run.conversation_id
        return conversation_id

    async def _run(self, response: str, metadata: Any) -> pb.Run:
        """Returns the run of an agent that gave a response."""
        unknown = ApiError(
            f"There is no response '{response}'.",
            status=HTTPStatus.NOT_FOUND,
            code="response_not_found",
        )
        run_id = run_id_of(response)
        if run_id is None:
            raise unknown
        try:
            answer = await self._runs.GetRun(pb.GetRunRequest(run_id=run_id), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise unknown from error
            raise
        run: pb.Run = answer.run
        if not run.agent_id:
            # It is the run of a group, and a group is not a model.
            raise unknown
        return run

    async def _response(self, run: pb.Run, metadata: Any) -> dict[str, Any]:
        head = ResponseHead(
            run_id=run.id,
            model=await self._model_of(run.agent_id, metadata),
            conversation_id=run.conversation_id,
            created_at=run.create_time.seconds,
            completed_at=run.finish_time.seconds or None,
        )
        if run.state in _OPEN_STATES:
            return ResponseWriter(head, _OPEN_STATES[run.state]).body()
        writer = ResponseWriter(head)
        stored = self._runs.StreamRun(
            pb.StreamRunRequest(run_id=run.id, stream_tokens=False), metadata=metadata
        )
        try:
            async for piece in pieces_of(events_of(stored)):
                writer.add(piece)
        except RunFailedError as error:
            writer.fail(error)
        return writer.body()

    async def _model_of(self, agent_id: str, metadata: Any) -> str:
        try:
            return (await self._agents.find(agent_id, metadata)).name
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                # The agent was deleted.
                return agent_id
            raise


async def _streamed(writer: ResponseWriter, pieces: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
    for event in writer.begin():
        yield _named(event)
    try:
        async for piece in pieces:
            for event in writer.add(piece):
                yield _named(event)
    except ApiError as error:
        for event in writer.fail(error):
            yield _named(event)


def _named(event: Event) -> bytes:
    return server_sent(event, event["type"])


def _no_conversation(conversation_id: str) -> ApiError:
    return ApiError(
        f"The agent has no conversation '{conversation_id}'.",
        status=HTTPStatus.NOT_FOUND,
        param="conversation",
        code=_UNKNOWN_CONVERSATION,
    )
