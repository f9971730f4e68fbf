"""HTTP connections whose requests have endless or slow heads, or slow bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from strata.shared import http_connection
from strata.shared.http_listener import HttpListener, Receive, Scope, Send

POST = b"POST / HTTP/1.1\r\nhost: strata\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


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
        while not reader.at_eof() and sent < 4_000_000:
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
    assert sent < 4_000_000


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
