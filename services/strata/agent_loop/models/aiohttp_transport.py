"""Sends the requests of an SDK's HTTP client with aiohttp, whose parser of responses is in C.

The SDKs offer a transport on aiohttp as well. It reports a refused connection and a lost one as a
timeout, passes on other errors untranslated, and keeps cookies of its own.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Self

import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from strata.shared.settings import KIB, MIB

# As the SDKs have them.
_MAX_CONNECTIONS = 1000
_IDLE_S = 5.0
# The longest line of the headers of a response. aiohttp accepts 128 lines.
_MAX_HEADER_BYTES = 32 * KIB
# As much as httpx2's own transport returns at once.
_MAX_PIECE_BYTES = 64 * KIB
# aiohttp writes a larger body in pieces if it is a file.
_MAX_WHOLE_BODY = MIB
# Headers that aiohttp would add.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# Find out that a server has gone while a connection waits for it, as Anthropic's SDK does.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 5}
_connect_s: ContextVar[float | None] = ContextVar("connect_s", default=None)

_FAILURES = (aiohttp.ClientError, OSError, ValueError)


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Requests without a proxy, over connections that are kept for the next request.

    Its session is opened by the first request, and belongs to the event loop of that request.

    Args:
        ssl_context: Verifies servers.
    """

    def __init__(self, ssl_context: ssl.SSLContext) -> None:
        self._ssl_context = ssl_context
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request; the body of the response is read from its stream.

        Raises:
            httpx2.TransportError: No response comes.
        """
        limits: Mapping[str, float | None] = request.extensions.get("timeout", {})
        body = await request.aread()
        if self._closed:
            raise RuntimeError("the transport has been closed")
        session = self._session
        if session is None:
            session = self._session = self._open()
        else:
            # Connections that the server has closed: the event loop reads that in its first pass,
            # and the pool can detect it in the second. aiohttp does not check an idle socket.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        _connect_s.set(limits.get("connect"))
        try:
            response = await session.request(
                request.method,
                _address(request.url.raw_scheme, request.url.netloc, request.url.raw_path),
                headers=_headers(request),
                data=io.BytesIO(body) if len(body) > _MAX_WHOLE_BODY else body or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    connect=limits.get("pool"),
                    sock_connect=limits.get("connect"),
                    sock_read=limits.get("read"),
                ),
                server_hostname=request.extensions.get("sni_hostname"),
            )
        except _FAILURES as error:
            raise _translated(error, request) from error
        return httpx2.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Body(response, request),
            extensions={
                "http_version": b"HTTP/1.1",
                "reason_phrase": (response.reason or "").encode("ascii", "ignore"),
            },
        )

    async def aclose(self) -> None:
        """Closes all connections."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=self._ssl_context,
            limit=_MAX_CONNECTIONS,
            keepalive_timeout=_IDLE_S,
            resolver=_Resolver(),
            use_dns_cache=False,
            socket_factory=_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            # The client has one.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
            auto_decompress=False,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )


class _Body(httpx2.AsyncByteStream, AsyncIterator[bytes]):
    """The body of a response: each time the bytes that have arrived."""

    def __init__(self, response: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._response = response
        self._request = request

    def __aiter__(self) -> Self:
        """Returns itself."""
        return self

    async def __anext__(self) -> bytes:
        """Returns the next bytes.

        Raises:
            httpx2.TransportError: The connection broke, or nothing came in time.
        """
        try:
            received = await self._response.content.read(_MAX_PIECE_BYTES)
        except _FAILURES as error:
            raise _translated(error, self._request) from error
        if not received:
            raise StopAsyncIteration
        return received

    async def aclose(self) -> None:
        """Leaves the connection to the next request, or closes it if the body is not complete."""
        self._response.release()


class _Resolver(AbstractResolver):
    """Looks up the addresses of a name for each connection, also if the machine is offline.

    The resolver of aiohttp leaves out addresses of a family that no network of the machine has,
    and has no time limit.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Returns the addresses.

        Raises:
            OSError: There are none.
            TimeoutError: The look-up took too long.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_connect_s.get()):
            addresses = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=address[1],
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in addresses
            if isinstance(address[0], str)
        ]

    async def close(self) -> None:
        """Does nothing."""


def _socket(address: tuple[int | socket.AddressFamily, int, int, str, object]) -> socket.socket:
    family, kind, protocol, *_ = address
    new_socket = socket.socket(family, kind, protocol)
    new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            new_socket.setsockopt(socket.IPPROTO_TCP, option, value)
    return new_socket


@lru_cache(maxsize=256)
def _address(scheme: bytes, host: bytes, path: bytes) -> URL:
    # Without user and password, which the client has put into a header.
    return URL(f"{scheme.decode()}://{host.decode()}{path.decode()}", encoded=True)


def _headers(request: httpx2.Request) -> list[tuple[str, str]]:
    # The body is sent as a whole.
    return [
        (name.decode(), value.decode())
        for name, value in request.headers.raw
        if name.lower() != b"transfer-encoding"
    ]


def _translated(error: Exception, request: httpx2.Request) -> httpx2.TransportError:
    """Returns the error of the client's library for one of aiohttp."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx2.ConnectTimeout("no connection in time", request=request)
        case TimeoutError():
            return httpx2.ReadTimeout("nothing was received in time", request=request)
        case aiohttp.ClientConnectorCertificateError():
            return httpx2.ConnectError(str(error.certificate_error), request=request)
        case aiohttp.ClientConnectorError():
            return httpx2.ConnectError(_reason(error.os_error), request=request)
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return httpx2.UnsupportedProtocol("the address is not valid", request=request)
        case aiohttp.ServerDisconnectedError():
            text = "the server closed the connection without a response"
            return httpx2.RemoteProtocolError(text, request=request)
        case aiohttp.ClientPayloadError():
            text = "the server closed the connection before the end of the response"
            return httpx2.RemoteProtocolError(text, request=request)
        case aiohttp.ClientResponseError():
            # The other lines contain the received data.
            problem = error.message.partition("\n")[0].removesuffix(":")
            text = f"the response is not valid HTTP: {problem}"
            return httpx2.RemoteProtocolError(text, request=request)
        case UnicodeError():
            return httpx2.ConnectError("the name of the server is not valid", request=request)
        case OSError():
            return httpx2.ReadError(_reason(error), request=request)
        case ValueError():
            return httpx2.LocalProtocolError(str(error), request=request)
    return httpx2.ReadError(str(error), request=request)


def _reason(error: OSError) -> str:
    """Returns why a connection failed, without the address, which may be an internal one."""
    if isinstance(error, (socket.gaierror, ssl.SSLError)):
        return error.strerror or str(error)
    return os.strerror(error.errno) if error.errno else "the connection was lost"
