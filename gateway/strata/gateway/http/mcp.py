"""The memory of each agent as an MCP server, at ``/mcp/{agent}``.

Each request stands alone, so that any replica answers it: there are no sessions, and so no messages
from the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any

import grpc.aio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from strata.api.agent_loop.v1 import agent_service_pb2, agent_service_pb2_grpc
from strata.api.archival.v1 import passage_service_pb2_grpc
from strata.api.core_memory.v1 import block_service_pb2_grpc, file_service_pb2_grpc
from strata.api.gateway.v1 import admin_service_pb2, admin_service_pb2_grpc
from strata.api.recall.v1 import message_service_pb2_grpc
from strata.gateway.http.calls import metadata_of
from strata.gateway.http.errors import code_of_status, http_status_of
from strata.protocol.error_text import error_lines
from strata.protocol.errors import StrataError, UnauthenticatedError
from strata.protocol.shapes import ClientMethod, WrappedChannel
from strata.protocol.status import code_of
from strata.shared.agent_mcp.memory import AgentMemory
from strata.shared.agent_mcp.server import build_server
from strata.shared.http_listener import Receive, Scope, Send
from strata.shared.ids import is_id
from strata.shared.interceptors.client import ClientChannel
from strata.shared.scopes import Scope as KeyScope
from strata.shared.search.time_expressions import zone_of

_AGENT = "agent"
_READ_ONLY = b"read_only=true"
_EDITOR_CHARS = 100


class McpApplication:
    """An ASGI application with the agents of the caller's project.

    Args:
        channel: Calls the gateway.
        max_body_bytes: Larger requests are refused.
    """

    def __init__(self, channel: grpc.aio.Channel, *, max_body_bytes: int) -> None:
        self._channel = channel
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request for the agent in the path."""
        headers = Headers(scope=scope)
        services = _Services(self._channel, metadata_of(headers))
        try:
            memory = await _memory_of(services, scope["path_params"][_AGENT], headers)
        except StrataError as error:
            await _refusal(error)(scope, receive, send)
            return
        read_only = not memory.may_write or _READ_ONLY in scope["query_string"].split(b"&")
        manager = StreamableHTTPSessionManager(
            build_server(memory, read_only=read_only),
            json_response=True,
            stateless=True,
            max_request_body_size=self._max_body_bytes,
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


class _KeyedChannel(WrappedChannel):
    """A channel whose calls carry the credentials of a request."""

    def __init__(self, inner: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        super().__init__(inner)
        self._metadata = metadata

    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method."""
        return partial(_call_with, method.open_on(self._inner), self._metadata)


def _call_with(
    call: Any,
    credentials: tuple[tuple[str, str], ...],
    *arguments: Any,
    metadata: Any = None,
    **options: Any,
) -> Any:
    return call(*arguments, metadata=(*credentials, *(metadata or ())), **options)


class _Services:
    """Stubs with the credentials of a request; their calls raise `strata.protocol.errors`."""

    def __init__(self, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel = ClientChannel(_KeyedChannel(channel, metadata))

    @cached_property
    def admin(self) -> admin_service_pb2_grpc.AdminServiceStub:
        """Keys."""
        return admin_service_pb2_grpc.AdminServiceStub(self._channel)

    @cached_property
    def agents(self) -> agent_service_pb2_grpc.AgentServiceStub:
        """Agents."""
        return agent_service_pb2_grpc.AgentServiceStub(self._channel)

    @cached_property
    def blocks(self) -> block_service_pb2_grpc.BlockServiceStub:
        """Core memory."""
        return block_service_pb2_grpc.BlockServiceStub(self._channel)

    @cached_property
    def files(self) -> file_service_pb2_grpc.FileServiceStub:
        """Files."""
        return file_service_pb2_grpc.FileServiceStub(self._channel)

    @cached_property
    def passages(self) -> passage_service_pb2_grpc.PassageServiceStub:
        """Archival memory."""
        return passage_service_pb2_grpc.PassageServiceStub(self._channel)

    @cached_property
    def messages(self) -> message_service_pb2_grpc.MessageServiceStub:
        """Recall memory."""
        return message_service_pb2_grpc.MessageServiceStub(self._channel)


async def _memory_of(services: _Services, name: str, headers: Headers) -> AgentMemory:
    """Returns the memory of an agent, by id or name.

    Raises:
        StrataError: The key is not valid, or there is no such agent in its project.
    """
    who = await services.admin.WhoAmI(admin_service_pb2.WhoAmIRequest())
    by_id = is_id(name, "agent")
    request = agent_service_pb2.GetAgentRequest(
        agent_id=name if by_id else "", name="" if by_id else name
    )
    agent = (await services.agents.GetAgent(request)).agent

    @asynccontextmanager
    async def connected() -> AsyncIterator[_Services]:
        yield services

    return AgentMemory(
        connected,
        lambda error: "\n".join(error_lines(error)),
        agent.id,
        agent.name,
        zone_of(agent.timezone),
        KeyScope.WRITE in who.api_key.scopes,
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
