"""The memory of each agent as an MCP server, at ``/mcp/{agent}``.

There are no sessions: each request is independent, so any replica can answer it. A subscription is
a request whose response is a stream, in the protocol from 2026-07-28 on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, MutableMapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import grpc.aio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from strata.api.gateway.v1 import admin_service_pb2
from strata.gateway.http.calls import agent_request, metadata_of
from strata.gateway.http.errors import code_of_status, http_status_of
from strata.gateway.http.keyed_services import KeyedServices
from strata.protocol.error_text import error_lines
from strata.protocol.errors import StrataError, UnauthenticatedError
from strata.protocol.status import code_of
from strata.shared.agent_mcp.memory import ConnectedAgent
from strata.shared.agent_mcp.server import build_server
from strata.shared.http_listener import ENDING, EXTENSIONS, Receive, Scope, Send
from strata.shared.interceptors.admission import Slots
from strata.shared.scopes import Scope as KeyScope
from strata.shared.search.time_expressions import zone_of

_AGENT = "agent"
_READ_ONLY = b"read_only=true"
_EDITOR_CHARS = 100
_LISTEN = "subscriptions/listen"
# Each looks for changes every few seconds, within the limit of calls of its key.
_MAX_SUBSCRIPTIONS = 1024
_PROJECT_SHARE = 0.25
_RETRY_AFTER_S = 5.0


class McpApplication:
    """An ASGI application with the agents of the caller's project.

    Args:
        channel: Calls the gateway.
        max_body_bytes: Larger requests are refused.
        max_subscriptions: Maximum number of open subscriptions; one project gets at most a quarter.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        max_body_bytes: int,
        max_subscriptions: int = _MAX_SUBSCRIPTIONS,
    ) -> None:
        self._channel = channel
        self._max_body_bytes = max_body_bytes
        self._subscriptions = Slots(
            max_subscriptions,
            kind="subscriptions",
            retry_after_s=_RETRY_AFTER_S,
            share=_PROJECT_SHARE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request for the agent in the path."""
        headers = Headers(scope=scope)
        services = KeyedServices(self._channel, metadata_of(headers))
        with ExitStack() as slot:
            try:
                identity = await services.admin.WhoAmI(admin_service_pb2.WhoAmIRequest())
                memory = await _memory_of(services, identity, scope["path_params"][_AGENT], headers)
                if headers.get(MCP_METHOD_HEADER) == _LISTEN:
                    slot.enter_context(self._subscriptions.take(identity.project.id))
            except StrataError as error:
                await _refusal(error)(scope, receive, send)
                return
            await self._serve(memory, headers, scope, receive, send)

    async def _serve(
        self, memory: ConnectedAgent, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        read_only = not memory.may_write or _READ_ONLY in scope["query_string"].split(b"&")
        manager = StreamableHTTPSessionManager(
            build_server(memory, read_only=read_only),
            json_response=headers.get(MCP_PROTOCOL_VERSION_HEADER)
            in (
                None,
                *HANDSHAKE_PROTOCOL_VERSIONS,
            ),
            stateless=True,
            max_request_body_size=self._max_body_bytes,
        )
        async with manager.run():
            if headers.get(MCP_METHOD_HEADER) == _LISTEN:
                subscription = _Subscription(send)
                handled = manager.handle_request(scope, receive, subscription.send)
                await subscription.serve(handled, scope[EXTENSIONS][ENDING])
            else:
                await manager.handle_request(scope, receive, send)


class _Subscription:
    """A response that ends when the client leaves, or when the port is closed.

    Args:
        send: Sends the messages of the response.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._open = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Sends a message of the response."""
        self._open = message["type"] == "http.response.start" or message.get("more_body", False)
        await self._send(message)

    async def serve(self, handled: Coroutine[Any, Any, None], ending: asyncio.Event) -> None:
        """Serves the request until the client leaves or `ending` is set."""
        serving = asyncio.create_task(handled)
        ended = asyncio.create_task(ending.wait())
        try:
            await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            ended.cancel()
            await asyncio.wait((serving,))
        if not serving.cancelled():
            serving.result()
        if self._open:
            # The client subscribes again and reads the blocks again, as after a broken stream.
            await self._send({"type": "http.response.body", "body": b""})


async def _memory_of(
    services: KeyedServices, identity: admin_service_pb2.WhoAmIResponse, name: str, headers: Headers
) -> ConnectedAgent:
    """Returns the memory of an agent, by id or name.

    Raises:
        StrataError: There is no such agent in the project of the key.
    """
    agent = (await services.agents.GetAgent(agent_request(name))).agent

    @asynccontextmanager
    async def connected() -> AsyncIterator[KeyedServices]:
        yield services

    return ConnectedAgent(
        connected,
        lambda error: "\n".join(error_lines(error)),
        agent.id,
        agent.name,
        zone_of(agent.timezone),
        KeyScope.WRITE in identity.api_key.scopes,
        headers.get("user-agent", "")[:_EDITOR_CHARS] or "a client without a name",
    )


def _refusal(error: StrataError) -> Response:
    body = {"error": error.reason.value.lower(), "error_description": error.message}
    missing_key = isinstance(error, UnauthenticatedError)
    return JSONResponse(
        body,
        status_code=http_status_of(code_of_status(code_of(error))),
        headers={"www-authenticate": "Bearer"} if missing_key else None,
    )
