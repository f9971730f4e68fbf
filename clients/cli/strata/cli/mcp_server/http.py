"""Serves MCP over streamable HTTP, with a bearer token and a list of allowed host names."""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

import uvicorn
from mcp.server import Server
from mcp.server.transport_security import TransportSecuritySettings

from strata.cli.failures import UsageError

PATH = "/mcp"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_TOKEN = re.compile(r"[!-~]{16,512}")
# Open event streams would block the shutdown.
_SHUTDOWN_S = 3


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> None:
    """Checks a token that a person chose.

    Raises:
        UsageError: It is too short to be safe, or has characters that a header cannot have.
    """
    if not _TOKEN.fullmatch(token):
        raise UsageError(
            "STRATA_MCP_TOKEN is invalid: use 16 to 512 letters, digits and signs, without spaces."
        )


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens.

    Args:
        host: An address of this machine, or ``localhost``.
        port: 0 for any that is free.

    Raises:
        UsageError: Nothing can listen there.
    """
    address = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except (OSError, UnicodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"Nothing can listen at {host}, port {port}: {problem}.") from error


def url_of(host: str, port: int) -> str:
    """Returns where clients connect."""
    return f"http://{_in_url(host)}:{port}{PATH}"


async def serve_http(
    server: Server[dict[str, Any]],
    listening: socket.socket,
    *,
    token: str,
    names: Sequence[str] = (),
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        server: The MCP server.
        listening: The listening socket.
        token: Bearer token that clients must send.
        names: Allowed host names besides loopback. Others are refused, against DNS rebinding by a
            page in a browser.
    """
    app = server.streamable_http_app(streamable_http_path=PATH, transport_security=_security(names))
    config = uvicorn.Config(
        TokenGate(app, token),
        log_config=None,
        access_log=False,
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    await uvicorn.Server(config).serve(sockets=[listening])


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _security(names: Sequence[str]) -> TransportSecuritySettings:
    names = [_in_url(name) for name in names]
    hosts = [f"{name}:*" for name in (*_LOOPBACK, *names)]
    origins = [f"http://{host}" for host in hosts]
    # Behind a proxy that ends TLS, the usual ports are left out.
    hosts += names
    origins += [f"https://{name}{port}" for name in names for port in ("", ":*")]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


class TokenGate:
    """Rejects requests without the token.

    Args:
        app: The ASGI application behind it.
        token: The token.
    """

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 401."""
        if scope["type"] != "http" or self._admits(scope["headers"]):
            await self._app(scope, receive, send)
            return
        error = {"error": "invalid_token", "error_description": "Send the bearer token."}
        body = json.dumps(error).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 401,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                    (b"www-authenticate", b"Bearer"),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})

    def _admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        authorizations = [value for name, value in headers if name.lower() == b"authorization"]
        scheme, _, token = (
            authorizations[0].partition(b" ") if len(authorizations) == 1 else (b"", b"", b"")
        )
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
