"""Attacks on the proxy of a call over real sockets, and malicious pages."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

import pytest

from strata.shared.context import Caller, RequestContext, calling_project, use
from strata.shared.web.fetcher import Fetched
from strata.shared.web.url_guard import Guard
from strata.tool_execution.builtin.page_reader import PageLimits, PageReader
from strata.tool_execution.domain.tools import ToolError
from strata.tool_runner.egress.proxy import EgressProxy, ProxyLimits
from web_servers import Names, RawServer, ok

HOSTS = ["api.example.com"]


@contextlib.asynccontextmanager
async def proxied(
    server: RawServer, *answers: Sequence[str], hosts: list[str] = HOSTS
) -> AsyncIterator[int]:
    """Starts a proxy that may reach the server; yields its port."""
    guard = Guard(Names(*answers), private_networks=["127.0.0.0/8"], ports=[server.port])
    limits = ProxyLimits(head_s=3.0, requests=20, connections=4)
    proxy = EgressProxy(hosts, guard, limits)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await proxy.serve(listener)
    try:
        yield port
    finally:
        await proxy.close()


async def say(port: int, data: bytes) -> bytes:
    """Sends bytes and returns the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("length", ["5\xa0", "5\x0b", "5\x1f", "0", ""])
async def test_no_smuggled_second_request_reaches_a_server(server: RawServer, length: str) -> None:
    """A server that ignores the length would read the body as a second request."""
    server.answers["/"] = ok(b"hello")
    field = f"Content-Length: {length}\r\n" if length else ""
    first = f"POST http://api.example.com:{server.port}/ HTTP/1.1\r\n{field}\r\n"
    async with proxied(server) as port:
        await say(port, first.encode("latin-1") + b"GET /x HTTP/1.1\r\nHost: inside\r\n\r\n")
    assert not any("inside" in head for head in server.heads)


async def test_a_name_is_resolved_once_and_all_its_addresses_are_checked(server: RawServer) -> None:
    server.answers["/"] = ok(b"hello")
    ask = f"GET http://api.example.com:{server.port}/ HTTP/1.1\r\n\r\n".encode()
    async with proxied(server, ["127.0.0.1"], ["169.254.169.254"]) as port:
        assert b"hello" in await say(port, ask)
        assert b" 403 " in await say(port, ask)
    async with proxied(server, ["127.0.0.1", "10.0.0.1"]) as port:
        assert b" 403 " in await say(port, ask)


async def test_names_are_resolved_on_behalf_of_the_project_of_the_call(server: RawServer) -> None:
    server.answers["/"] = ok(b"hello")
    asked = []

    async def resolve(host: str, _: int) -> list[str]:
        asked.append((calling_project(), host))
        return ["127.0.0.1"]

    guard = Guard(resolve, private_networks=["127.0.0.0/8"], ports=[server.port])
    with use(RequestContext(caller=Caller("", "project-1", "key-1"))):
        proxy = EgressProxy(HOSTS, guard, ProxyLimits())
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await proxy.serve(listener)
    try:
        ask = f"GET http://api.example.com:{server.port}/ HTTP/1.1\r\n\r\n".encode()
        assert b"hello" in await say(port, ask)
    finally:
        await proxy.close()
    assert asked == [("project-1", "api.example.com")]


async def test_slow_long_and_numerous_heads_are_refused(server: RawServer) -> None:
    server.answers["/"] = ok(b"hello")
    ask = f"GET http://api.example.com:{server.port}/ HTTP/1.1\r\n\r\n".encode()
    async with proxied(server) as port:
        assert b" 431 " in await say(port, b"GET http://a/ HTTP/1.1\r\n" + b"X: y\r\n" * 5000)
        slow = [say(port, b"GET http://api.exa") for _ in range(4)]
        held = [asyncio.ensure_future(call) for call in slow]
        answers = await asyncio.gather(*held)
        assert all(b" 408 " in answer for answer in answers)
        assert b"hello" in await say(port, ask)
        for _ in range(25):
            await say(port, ask)
    # A connection that is refused unread may look like a reset to the client; the server receives
    # nothing.
    assert 1 <= len(server.heads) <= 20


async def test_a_tunnel_to_the_proxy_itself_is_refused(server: RawServer) -> None:
    async with proxied(server, hosts=["api.example.com", "*.example.org"]) as port:
        for target in (f"api.example.com:{port}", f"127.0.0.1:{port}", "api.example.com:22"):
            answer = await say(port, f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            assert b" 403 " in answer, target
    assert server.heads == []


PAGES = {
    "a file as entity": (
        b"<!DOCTYPE x [<!ENTITY f SYSTEM 'file:///etc/passwd'>]><html><p>&f;words</p></html>",
        "application/xhtml+xml",
        "",
    ),
    "no pdf": (b"%PDF-1.7\n" + b"1 0 obj<</Kids[1 0 R]>>" * 10_000, "application/pdf", ""),
}


async def test_a_page_cannot_exceed_its_limits() -> None:
    reader = PageReader(PageLimits(seconds=15))

    async def read(name: str) -> str:
        body, kind, charset = PAGES[name]
        try:
            return (await reader.read(Fetched("http://a.b/", 200, kind, charset, body, False))).text
        except ToolError as error:
            return str(error)

    texts = await asyncio.gather(*map(read, PAGES))
    for text in texts:
        assert "root:" not in text
        assert not set(text) & {"\x00", "\x1b"}
        assert len(text) <= 2_000_000
