"""A minimal HTTP/1.1 server for model APIs, with full control over the connection.

No framework: only with a plain socket can a connection be cut in the middle of a chunk, and the
disconnection of the client be detected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class CutError(Exception):
    """Raised by a body to have the connection cut without a proper end."""


@dataclass(frozen=True)
class HttpRequest:
    """One request, with its body parsed as JSON if there is one."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    query: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    target: str = ""


@dataclass(frozen=True)
class HttpResponse:
    """An answer: JSON, or a stream of byte chunks."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Serves `handler` on 127.0.0.1.

    Attributes:
        abandoned: Set once a client has left a stream before its end.
    """

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self._handler = handler
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.abandoned = asyncio.Event()

    @property
    def url(self) -> str:
        """Root URL."""
        assert self._server is not None, "the server has not been started"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._wanted_port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client left, or the server is being closed: nobody receives an answer.
        finally:
            self._connections.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request; false when the connection is over."""
        request = await _read(reader)
        if request is None:
            return False
        response = await self._handler(request)
        try:
            if response.stream is None:
                await _write_json(writer, response)
            else:
                await self._write_stream(reader, writer, response)
        except CutError:
            writer.transport.abort()
            return False
        return request.headers.get("connection", "").lower() != "close"

    async def _write_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: HttpResponse
    ) -> None:
        assert response.stream is not None
        head = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        writer.write(_head(response.status, {**head, **response.headers}))
        async for chunk in response.stream:
            if reader.at_eof() or writer.is_closing():
                self.abandoned.set()
                raise CutError
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            try:
                await writer.drain()
            except ConnectionError:
                # The client left after the check above.
                self.abandoned.set()
                raise
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _read(reader: asyncio.StreamReader) -> HttpRequest | None:
    line = await reader.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        body = None
    path, _, query = target.partition("?")
    return HttpRequest(method, path, headers, body, dict(parse_qsl(query)), raw, target)


async def _write_json(writer: asyncio.StreamWriter, response: HttpResponse) -> None:
    payload = json.dumps(response.body, ensure_ascii=False).encode()
    head = {"content-type": "application/json", "content-length": str(len(payload))}
    writer.write(_head(response.status, {**head, **response.headers}) + payload)
    await writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
