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

from strata.shared import http_connection
from strata.shared.http_listener import HttpListener, Receive, Scope, Send

POST = b"POST / HTTP/1.1\r\nhost: strata\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
# More than the buffers of both sockets, which can hold some megabytes.
_MUCH = 64_000_000


async def count_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """The port of a listener."""
    listener = HttpListener(lambda _: count_body, "127.0.0.1", 0)
    channel: Any = None
    await listener.start(channel)
    yield listener.port
    # Stopping waits for the end of the connections.
    await listener.stop()


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


async def test_a_slow_head_closes_the_connection(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.2)
    for start in (b"", POST):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_body_may_be_large_and_slow(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 4 * http_connection.MAX_HEAD_BYTES
    writer.write(POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % size)
    await asyncio.sleep(0.3)
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "BODY_PAUSE_S", 0.1)

    async def count_slowly(scope: Scope, receive: Receive, send: Send) -> None:
        # The server does not read meanwhile, and then does not answer.
        await asyncio.sleep(0.3)
        body = await Request(scope, receive).body()
        await asyncio.sleep(0.3)
        await PlainTextResponse(str(len(body)))(scope, receive, send)

    listener = HttpListener(lambda _: count_slowly, "127.0.0.1", 0)
    channel: Any = None
    await listener.start(channel)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    size = 4 * http_connection.MAX_HEAD_BYTES
    writer.write(POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % size)
    writer.write(b"b" * size)
    async with asyncio.timeout(20):
        assert (await reader.read()).endswith(str(size).encode())
    writer.close()
    await listener.stop()


async def test_client_has_the_whole_pause_after_the_server_resumes_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "BODY_PAUSE_S", 1.0)
    resumed = asyncio.Event()

    async def count_late(scope: Scope, receive: Receive, send: Send) -> None:
        # Most of a pause passes before the server reads on.
        await asyncio.sleep(0.8)
        resumed.set()
        await count_body(scope, receive, send)

    listener = HttpListener(lambda _: count_late, "127.0.0.1", 0)
    channel: Any = None
    await listener.start(channel)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    # The server pauses after it has read all of this: nothing arrives when it reads on.
    size = HIGH_WATER_LIMIT + 1
    writer.write(POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % (size + 1))
    writer.write(b"b" * size)
    await resumed.wait()
    # The pause that began with the body ends during this one.
    await asyncio.sleep(0.5)
    writer.write(b"b")
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await listener.stop()
    assert answer.endswith(str(size + 1).encode())


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

    listener = HttpListener(lambda _: stream, "127.0.0.1", 0)
    channel: Any = None
    await listener.start(channel)
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        # Before the connection: the window is agreed with it.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", listener.port))
        await loop.sock_sendall(
            client, b"GET / HTTP/1.1\r\nhost: strata\r\nconnection: close\r\n\r\n"
        )
        yield client, ended
    # Waits for the end of the connections.
    await listener.stop()


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


async def test_the_end_of_a_response_does_not_wait_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "READ_PAUSE_S", 0.2)
    made: list[http_connection.HttpConnection] = []
    lost = asyncio.Event()
    connection_made = http_connection.HttpConnection.connection_made
    connection_lost = http_connection.HttpConnection.connection_lost

    def made_and_noted(self: http_connection.HttpConnection, transport: asyncio.Transport) -> None:
        connection_made(self, transport)
        # All of the response fits: the application never waits for the client.
        transport.set_write_buffer_limits(high=64 * len(_PIECE))
        made.append(self)

    def lost_and_noted(self: http_connection.HttpConnection, error: Exception | None) -> None:
        connection_lost(self, error)
        lost.set()

    monkeypatch.setattr(http_connection.HttpConnection, "connection_made", made_and_noted)
    monkeypatch.setattr(http_connection.HttpConnection, "connection_lost", lost_and_noted)
    async with streaming(48) as (_, ended), asyncio.timeout(20):
        await ended.wait()
        assert made
        assert not lost.is_set()
        await lost.wait()


async def test_a_client_may_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "READ_PAUSE_S", 0.2)
    received = 0
    async with streaming(20) as (client, _), asyncio.timeout(20):
        while piece := await read_some(client):
            received += len(piece)
            await asyncio.sleep(0.02)
    assert received > 20 * len(_PIECE)
