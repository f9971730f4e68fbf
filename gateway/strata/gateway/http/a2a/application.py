"""Serves the agents of a project at ``/a2a/{agent}``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import grpc.aio
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import (
    A2AError,
    InvalidRequestError,
    MethodNotFoundError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from a2a.utils.task import validate_history_length
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.gateway.http.a2a.card import VERSIONS, agent_card
from strata.gateway.http.a2a.dialects import METHODS, REFUSED, A2aDialect, A2aMethod, A2aOperation
from strata.gateway.http.a2a.json_rpc import (
    RpcFailureError,
    RpcRequest,
    a2a_error,
    failure,
    parse_rpc_request,
    refusal,
    success,
)
from strata.gateway.http.a2a.tasks import AgentTasks
from strata.gateway.http.calls import BodyTooLargeError, agent_request, metadata_of, read_body
from strata.gateway.http.conversations import ExternalConversations
from strata.gateway.http.json_messages import LargeBodies
from strata.gateway.http.server_sent_events import event_stream, server_sent
from strata.protocol.status import from_rpc_error
from strata.shared.http_listener import Receive, Scope, Send

_AGENT = "agent"
_VERSION_HEADER = "a2a-version"
_POST = "POST"


class A2aApplication:
    """An ASGI application with the agents of the caller's project: their cards, and their tasks.

    Args:
        channel: Calls the gateway.
        bodies: Handles large requests.
        max_body_bytes: Larger requests are refused.
        public_url: Where clients reach the port; empty for the address of each request.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        bodies: LargeBodies,
        *,
        max_body_bytes: int,
        public_url: str = "",
    ) -> None:
        self._channel = channel
        self._agents: Any = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._conversations = ExternalConversations(channel)
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request: GET for the card of the agent in the path, POST for its methods."""
        request = Request(scope, receive)
        respond = self._method if request.method == _POST else self._card
        response = await respond(request)
        await response(scope, receive, send)

    async def _card(self, request: Request) -> Response:
        try:
            agent = await self._agent(request)
        except grpc.aio.AioRpcError as error:
            return refusal(None, from_rpc_error(error))
        base = base_url_of(request, self._public_url)
        return JSONResponse(agent_card(agent, f"{base}/a2a/{quote(agent.id)}"))

    async def _method(self, request: Request) -> Response:
        request_id: str | int | None = None
        try:
            body = await read_body(request, self._max_body_bytes)
            metadata = metadata_of(request.headers)
            await self._bodies.check_key(body, metadata)
            agent = await self._agent(request)
            rpc_request = await self._bodies.handle(parse_rpc_request, body, metadata)
            request_id = rpc_request.id
            method = _method_of(rpc_request.method, request.headers.get(_VERSION_HEADER, ""))
            params = await self._bodies.handle(
                lambda _: method.dialect.request(rpc_request, method.kind), body, metadata
            )
            tasks = AgentTasks(self._channel, self._conversations, agent, metadata)
            return await _respond(tasks, method, rpc_request, params)
        except grpc.aio.AioRpcError as error:
            return refusal(request_id, from_rpc_error(error))
        except BodyTooLargeError as error:
            too_large = failure(None, InvalidRequestError(str(error)))
            return JSONResponse(too_large, status_code=413)
        except RpcFailureError as error:
            return JSONResponse(failure(error.request_id, error.error))
        except A2AError as error:
            return JSONResponse(failure(request_id, error))

    async def _agent(self, request: Request) -> agent_service_pb2.Agent:
        response = await self._agents.GetAgent(
            agent_request(request.path_params[_AGENT]), metadata=metadata_of(request.headers)
        )
        agent: agent_service_pb2.Agent = response.agent
        return agent


def base_url_of(request: Request, public_url: str) -> str:
    """Returns the URL of the port without a slash at its end.

    Args:
        request: A request that reached it.
        public_url: Where clients reach it; empty for the address of the request.
    """
    return (public_url or f"{request.url.scheme}://{request.url.netloc}").rstrip("/")


def _method_of(name: str, version: str) -> A2aMethod:
    """Returns the method of a request.

    Raises:
        A2AError: It is not served.
    """
    if version and version.partition(".")[0] != "1" and version != "0.3":
        raise VersionNotSupportedError(
            f"Version {version!r} is not supported; use {' or '.join(VERSIONS)}."
        )
    method = METHODS.get(name)
    if method is not None:
        return method
    match REFUSED.get(name):
        case A2aOperation.PUSH_NOTIFICATIONS:
            raise PushNotificationNotSupportedError(
                "Agents send no push notifications; subscribe to the task, or create a webhook."
            )
        case A2aOperation.EXTENDED_CARD:
            raise UnsupportedOperationError("The agent has no extended card, only its public one.")
        case _:
            raise MethodNotFoundError(f"There is no method {name[:100]!r}.")


async def _respond(
    tasks: AgentTasks, method: A2aMethod, rpc_request: RpcRequest, params: Any
) -> Response:
    match method.operation:
        case A2aOperation.SEND:
            result = method.dialect.sent((await tasks.send(params)).build())
        case A2aOperation.GET:
            validate_history_length(params)
            result = method.dialect.task((await tasks.get(params.id)).build())
        case A2aOperation.LIST:
            page = await tasks.list(params)
            # All of them are required, the empty token of the last page too.
            result = {
                "tasks": [method.dialect.task(task.build()) for task in page.tasks],
                "nextPageToken": page.next_page_token,
                "pageSize": page.page_size,
                "totalSize": page.total_size,
            }
        case A2aOperation.CANCEL:
            result = method.dialect.task((await tasks.cancel(params.id)).build())
        case A2aOperation.STREAM:
            return event_stream(
                _events(await tasks.send_streaming(params), method.dialect, rpc_request)
            )
        case _:
            return event_stream(
                _events(await tasks.subscribe(params.id), method.dialect, rpc_request)
            )
    return JSONResponse(success(rpc_request.id, result))


async def _events(
    updates: AsyncIterator[a2a.StreamResponse], dialect: A2aDialect, rpc_request: RpcRequest
) -> AsyncIterator[bytes]:
    try:
        async for update in updates:
            yield server_sent(success(rpc_request.id, dialect.update(update)))
    except grpc.aio.AioRpcError as error:
        # The run continues; the client can subscribe to the task.
        yield server_sent(failure(rpc_request.id, a2a_error(from_rpc_error(error))))
