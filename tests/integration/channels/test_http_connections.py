"""HTTP connections whose requests have endless or slow heads, or slow bodies; slow readers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from loop_time import put_forward
from polling import eventually, settle
from strata.shared import http_connection
from strata.shared.http_connection import HttpConnection
from strata.shared.http_listener import Application, HttpListener, Receive, Scope, Send

POST = b"POST / HTTP/1.1\r\nhost: strata\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
# More than the buffers of both sockets, which can hold some megabytes.
_MUCH = 64_000_000


async def count_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


@asynccontextmanager
async def listening(application: Application) -> AsyncIterator[int]:
    """Yields the port of a listener with an application."""
    listener = HttpListener(lambda _: application, "127.0.0.1", 0)
    channel: Any = None
    await listener.start(channel)
    yield listener.port
    # Stopping waits for the end of the connections.
    await listener.stop()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a listener."""
    async with listening(count_body) as port:
        yield port


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[HttpConnection]:
    """The connections that listeners accepted, in order."""
    accepted: list[HttpConnection] = []
    connection_made = HttpConnection.connection_made

    def record(self: HttpConnection, transport: asyncio.Transport) -> None:
        connection_made(self, transport)
        accepted.append(self)

    monkeypatch.setattr(HttpConnection, "connection_made", record)
    return accepted


async def pass_time(seconds: float) -> None:
    """Puts the clock of the loop forward, and runs what is due."""
    put_forward(seconds)
    await settle()


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (POST + b"x: ", b"a" * 10_000),
        (POST, b"x: " + b"a" * 10_000 + b"\r\n"),
        (b"GET /", b"a" * 10_000),
        (CHUNKED + b"1;", b"a" * 10_000),
        (CHUNKED + b"1\r\nb\r\n0\r\n", b"x: " + b"a" * 10_000 + b"\r\n"),
    ],
    ids=["header", "headers", "path", "extension of a chunk", "trailers"],
)
async def test_head_without_end_is_refused(port: int, start: bytes, repeated: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0
    try:
        writer.write(start)
        # The connection may break during further writes.
        while not reader.at_eof() and sent < _MUCH:
            writer.write(repeated)
            sent += len(repeated)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    except ConnectionError:
        pass
    finally:
        writer.close()
    assert sent < _MUCH


@pytest.mark.parametrize("start", [b"", POST])
async def test_a_slow_head_closes_the_connection(
    port: int, connections: list[HttpConnection], start: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    await eventually(lambda: connections and connections[0]._pending_bytes == len(start))
    await pass_time(http_connection.HEAD_S + 1)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_body_may_be_large_and_slow() -> None:
    begun = asyncio.Event()

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await count_body(scope, receive, send)

    async with listening(count) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        size = 4 * http_connection.MAX_HEAD_BYTES
        writer.write(POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % size)
        await begun.wait()
        await pass_time(http_connection.HEAD_S + 1)
        writer.write(b"b" * size)
        async with asyncio.timeout(20):
            assert (await reader.read()).endswith(str(size).encode())
        writer.close()


@pytest.mark.parametrize("start", [POST + b"content-length: 9\r\n\r\n", CHUNKED + b"3\r\n"])
async def test_body_that_stops_closes_the_connection(
    port: int, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(http_connection, "BODY_PAUSE_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start + b"b")
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_response_may_take_longer_than_a_pause_in_a_body(
    connections: list[HttpConnection],
) -> None:
    may_read, has_read, may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def count_slowly(scope: Scope, receive: Receive, send: Send) -> None:
        await may_read.wait()
        body = await Request(scope, receive).body()
        has_read.set()
        await may_answer.wait()
        await PlainTextResponse(str(len(body)))(scope, receive, send)

    async with listening(count_slowly) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        size = 4 * http_connection.MAX_HEAD_BYTES
        writer.write(POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % size)
        writer.write(b"b" * size)
        await eventually(lambda: connections and connections[0].flow.read_paused)
        await pass_time(http_connection.BODY_PAUSE_S + 1)
        may_read.set()
        await has_read.wait()
        await pass_time(http_connection.BODY_PAUSE_S + 1)
        may_answer.set()
        async with asyncio.timeout(20):
            assert (await reader.read()).endswith(str(size).encode())
        writer.close()


async def test_client_has_the_whole_pause_after_the_server_resumes_reading(
    connections: list[HttpConnection],
) -> None:
    may_read = asyncio.Event()

    async def count_late(scope: Scope, receive: Receive, send: Send) -> None:
        await may_read.wait()
        await count_body(scope, receive, send)

    async with listening(count_late) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # The server pauses after it has read all of this: nothing arrives when it reads on.
        size = HIGH_WATER_LIMIT + 1
        writer.write(POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % (size + 1))
        writer.write(b"b" * size)
        await eventually(lambda: connections and connections[0].flow.read_paused)
        # Most of a pause passes before the server reads on.
        await pass_time(0.8 * http_connection.BODY_PAUSE_S)
        may_read.set()
        await eventually(lambda: not connections[0].flow.read_paused)
        # The pause that began with the body ends during this one.
        await pass_time(0.5 * http_connection.BODY_PAUSE_S)
        writer.write(b"b")
        async with asyncio.timeout(20):
            assert (await reader.read()).endswith(str(size + 1).encode())
        writer.close()


_PIECE = b"a" * 65_536


@asynccontextmanager
async def streaming(pieces: int | None) -> AsyncIterator[tuple[socket.socket, asyncio.Event]]:
    """Yields a connection on which a stream was asked for, and what is set when the stream ends.

    Args:
        pieces: The length of the stream; None for one without end.
    """
    ended = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            sent = 0
            while pieces is None or sent < pieces:
                yield _PIECE
                sent += 1
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(body())(scope, receive, send)

    loop = asyncio.get_running_loop()
    async with listening(stream) as port:
        with socket.socket() as client:
            # Before the connection: the window is agreed with it.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(
                client, b"GET / HTTP/1.1\r\nhost: strata\r\nconnection: close\r\n\r\n"
            )
            yield client, ended


async def read_some(client: socket.socket) -> bytes:
    """Returns some bytes; none at the end of the connection, also if it broke."""
    try:
        return await asyncio.get_running_loop().sock_recv(client, 2 * len(_PIECE))
    except ConnectionResetError:
        return b""


async def test_a_client_that_does_not_read_loses_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "READ_PAUSE_S", 0.2)
    async with streaming(None) as (client, ended), asyncio.timeout(20):
        await ended.wait()
        while await read_some(client):
            pass


@pytest.fixture
def buffering_connections(
    connections: list[HttpConnection], monkeypatch: pytest.MonkeyPatch
) -> list[HttpConnection]:
    """The connections that listeners accepted; the process buffers what a client does not read.

    The application never waits for the client, and the system buffers little.
    """
    connection_made = HttpConnection.connection_made

    def buffer(self: HttpConnection, transport: asyncio.Transport) -> None:
        connection_made(self, transport)
        transport.set_write_buffer_limits(high=64 * len(_PIECE))
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)

    monkeypatch.setattr(HttpConnection, "connection_made", buffer)
    return connections


async def test_the_end_of_a_response_does_not_wait_for_a_client_that_does_not_read(
    buffering_connections: list[HttpConnection],
) -> None:
    async with streaming(48) as (_, ended):
        await ended.wait()
        [connection] = buffering_connections
        await eventually(lambda: connection.cycle.response_complete)
        assert connection.transport.get_write_buffer_size() > 0
        await pass_time(http_connection.READ_PAUSE_S + 1)
        assert connection.transport.get_write_buffer_size() == 0


async def test_a_client_may_read_slowly(buffering_connections: list[HttpConnection]) -> None:
    received = 0
    async with streaming(48) as (client, ended):
        await ended.wait()
        while piece := await read_some(client):
            received += len(piece)
            # Several pauses in all.
            await pass_time(http_connection.READ_PAUSE_S / 10)
    assert received > 48 * len(_PIECE)
