"""The routes of the HTTP port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from importlib import import_module

import grpc.aio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from strata.gateway.http.connect import ConnectApplication
from strata.gateway.http.console_path import CONSOLE_PATH
from strata.gateway.http.grpc_web_text import TEXT_TYPE, GrpcWebText
from strata.gateway.http.json_messages import JsonMessages, LargeBodies
from strata.gateway.http.openai_api.errors import RETRY_AFTER, SHOULD_RETRY, ApiError
from strata.gateway.http.openai_api.routes import OPENAI_PATH, OpenAiApi
from strata.gateway.http.plain_streams import PlainStream
from strata.gateway.http.request_ids import RequestIds
from strata.gateway.http.scope_headers import with_header
from strata.gateway.http.traced_requests import TracedRequests
from strata.gateway.registry import public_services
from strata.shared.http_listener import Application, Receive, Scope, Send
from strata.shared.interceptors.observe import REQUEST_ID_KEY
from strata.shared.tracing.spans import Tracer

_CONTENT_TYPE = b"content-type"
_JSON = b"application/json"
# JSON, the type that curl sends for the body of `-d`, and no type.
_PLAIN = (_JSON, b"application/x-www-form-urlencoded", b"")
_GRPC = b"application/grpc"
_GRPC_WEB = b"application/grpc-web"
_GRPC_WEB_TEXT = TEXT_TYPE.encode()
# https://connectrpc.com/docs/cors, and what the SDKs of OpenAI read.
_RESPONSE_HEADERS = (
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
    REQUEST_ID_KEY,
    SHOULD_RETRY,
    RETRY_AFTER,
)
_CORS_CACHE_S = 7200
# The status of nginx for such requests in logs; no client receives it.
_CLIENT_LEFT = 499


def http_application(
    channel: grpc.aio.Channel,
    *,
    max_message_bytes: int,
    origins: Sequence[str] = (),
    console_secret: str = "",
    public_url: str = "",
    tracer: Tracer | None = None,
) -> Application:
    """Returns the application of the HTTP port.

    Args:
        channel: Calls the gateway.
        max_message_bytes: Larger requests are refused.
        origins: Web origins whose pages may call it, such as ``https://app.example``; ``*`` for
            all.
        console_secret: Encrypts the sessions of the console, the same on every replica; empty for
            no console.
        public_url: Where clients reach the port; empty for the address that each request names.
        tracer: Begins the spans of the requests; None if traces are off.
    """
    bodies = LargeBodies(channel)
    # The SDKs of MCP and A2A take 25 MB and 5 MB; the console compiles templates.
    mcp = _OnDemand(
        lambda: import_module("strata.gateway.http.mcp").McpApplication(
            channel, max_body_bytes=max_message_bytes
        )
    )
    a2a = _OnDemand(
        lambda: import_module("strata.gateway.http.a2a.application").A2aApplication(
            channel, bodies, max_body_bytes=max_message_bytes, public_url=public_url
        )
    )
    started = time.time()
    console = _OnDemand(
        lambda: import_module("strata.gateway.console.application").console_application(
            channel, console_secret, max_body_bytes=max_message_bytes, started=started
        )
    )
    rpcs = _rpcs(channel, JsonMessages(bodies), max_message_bytes)
    routes: list[BaseRoute] = [
        Route("/healthz", _healthz, methods=["GET"]),
        *OpenAiApi(channel, bodies, max_body_bytes=max_message_bytes).routes(),
        Route("/mcp/{agent}", mcp, methods=["POST"]),
        Route("/a2a/{agent}", a2a, methods=["POST"]),
        Route("/a2a/{agent}/.well-known/agent-card.json", a2a, methods=["GET"]),
        *([Mount(CONSOLE_PATH, console)] if console_secret else ()),
        *(Mount(f"/{service.full_name}", rpcs) for service in public_services()),
    ]
    application = Starlette(
        routes=routes,
        middleware=[_cors(origins)] if origins else [],
        exception_handlers={HTTPException: _refused, ClientDisconnect: _left},
    )
    # The traces read the route from the scope, of which `RequestIds` passes on a copy.
    return RequestIds(application if tracer is None else TracedRequests(application, tracer))


def _rpcs(
    channel: grpc.aio.Channel, messages: JsonMessages, max_message_bytes: int
) -> _RpcApplication:
    """Returns the application that serves the methods of the public services."""
    methods = {
        f"/{service.full_name}/{method.name}": method
        for service in public_services()
        for method in service.methods
    }
    plain_streams = {
        path: PlainStream(method, channel, messages, max_body_bytes=max_message_bytes)
        for path, method in methods.items()
        if method.server_streaming and not method.client_streaming
    }
    connect = ConnectApplication(
        public_services(), channel, messages, max_message_bytes=max_message_bytes
    )
    return _RpcApplication(connect, methods.keys(), plain_streams)


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        # The SDKs of OpenAI, MCP and A2A send headers of their own, whose names change.
        allow_headers=["*"],
        expose_headers=list(_RESPONSE_HEADERS),
        max_age=_CORS_CACHE_S,
    )


async def _healthz(_: Request) -> Response:
    return JSONResponse({"status": "SERVING"})


async def _refused(request: Request, error: Exception) -> Response:
    """Returns the response to a request that no route answers: in OpenAI's form, or Connect's."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            code, message = "not_found", f"There is nothing at {path}."
        case HTTPStatus.METHOD_NOT_ALLOWED:
            code, message = "unimplemented", f"{path} does not take {request.method}."
        case _:
            code, message = "unknown", error.detail
    body = {"code": code, "message": message}
    if path.startswith(OPENAI_PATH):
        body = ApiError(message, status=error.status_code, code=code).body
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_LEFT)


class _OnDemand:
    """Makes an application at its first request, in a thread, since that loads large libraries.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Application]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._application: Application | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._application is None:
            async with self._lock:
                if self._application is None:
                    self._application = await asyncio.to_thread(self._make)
        await self._application(scope, receive, send)


class _RpcApplication:
    """Distinguishes the protocols of calls by the type of their body."""

    def __init__(
        self, connect: Application, paths: AbstractSet[str], streams: Mapping[str, PlainStream]
    ) -> None:
        self._connect = connect
        self._grpc_web_text = GrpcWebText(connect)
        self._paths = paths
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._paths:
            message = f"There is no method {scope['path']}."
            refusal = JSONResponse({"code": "unimplemented", "message": message}, status_code=404)
            await refusal(scope, receive, send)
            return
        scope = _in_utf8(scope)
        content_type = _content_type(scope)
        if content_type.startswith(_GRPC) and not content_type.startswith(_GRPC_WEB):
            message = "This port accepts Connect and gRPC-Web; gRPC has a separate port."
            refusal = JSONResponse({"code": "unknown", "message": message}, status_code=415)
            await refusal(scope, receive, send)
            return
        if content_type.startswith(_GRPC_WEB_TEXT):
            await self._grpc_web_text(scope, receive, send)
            return
        if scope["method"] == "POST" and content_type in _PLAIN:
            stream = self._streams.get(scope["path"])
            if stream is not None:
                response = await stream.respond(Request(scope, receive))
                await response(scope, receive, send)
                return
            scope = with_header(scope, _CONTENT_TYPE, _JSON)
        await self._connect(scope, receive, send)


def _in_utf8(scope: Scope) -> Scope:
    """Returns a request whose headers are UTF-8, which `connectrpc` reads; HTTP has Latin-1 too."""
    try:
        b"".join(value for _, value in scope["headers"]).decode()
    except UnicodeDecodeError:
        texts = [(name, value.decode("latin-1").encode()) for name, value in scope["headers"]]
        return {**scope, "headers": texts}
    return scope


def _content_type(scope: Scope) -> bytes:
    value: bytes = dict(scope["headers"]).get(_CONTENT_TYPE, b"")
    return value.partition(b";")[0].strip().lower()
