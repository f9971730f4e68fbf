"""A server with an HTTP port: its start, its certificate and its stop."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import httpx2
import pytest
from starlette.responses import PlainTextResponse

from certificates import self_signed
from integration.channels.conftest import echo_service
from integration.channels.endless_calls import Endless
from listening import listening_addresses
from strata.gateway.http.connect import ConnectApplication
from strata.gateway.http.json_messages import JsonMessages, LargeBodies
from strata.shared.http_listener import (
    ENDING,
    EXTENSIONS,
    Application,
    HttpListener,
    Receive,
    Scope,
    Send,
)
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.server import GrpcServer
from strata.shared.service import Service
from strata.shared.settings import ServiceSettings
from strata.shared.tls import ServerTls
from strata.standalone.ports import pick_port


def hello(_: grpc.aio.Channel) -> Application:
    """An application with a fixed answer."""
    return PlainTextResponse("hello")


class NoChannel:
    """A channel for applications that make no calls."""


@pytest.fixture
async def listening(tmp_path: Path) -> AsyncIterator[tuple[HttpListener, Path]]:
    """A listener with a certificate, and the folder of its files."""
    certificate, key = self_signed(tmp_path, ["localhost"], "127.0.0.1")
    listener = HttpListener(hello, "127.0.0.1", 0, ServerTls(certificate, key))
    channel: Any = NoChannel()
    await listener.start(channel)
    yield listener, tmp_path
    listener.abort()
    await listener.stop()


async def fetch(listener: HttpListener, certificate: bytes) -> str:
    context = ssl.create_default_context(cadata=certificate.decode())
    async with httpx2.AsyncClient(verify=context) as client:
        return (await client.get(f"https://127.0.0.1:{listener.port}/")).text


async def test_a_new_certificate_is_used_for_the_next_connection(
    listening: tuple[HttpListener, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    listener, folder = listening
    certificate = next(folder.glob("*.pem"))
    old = {file: file.read_bytes() for file in folder.iterdir()}
    first = old[next(file for file in old if b"CERTIFICATE" in old[file])]
    assert await fetch(listener, first) == "hello"

    other, other_key = self_signed(tmp_path_factory.mktemp("new"), ["localhost"], "127.0.0.1")
    for file, content in old.items():
        file.write_bytes((other if b"CERTIFICATE" in content else other_key).read_bytes())
    assert await fetch(listener, other.read_bytes()) == "hello"
    with pytest.raises(httpx2.ConnectError):
        await fetch(listener, first)

    # When the files cannot be used, the current certificate stays in use.
    certificate.write_text("nothing")
    assert await fetch(listener, other.read_bytes()) == "hello"


async def serve_connect(echo: Any, keys: Any, endless: Endless) -> tuple[GrpcServer, str]:
    """Starts a server whose calls do not end; returns it and the URL of its service."""
    service = echo_service(echo, endless.servicer(echo))
    descriptor = echo.pb.DESCRIPTOR.services_by_name["EchoService"]

    def application(channel: grpc.aio.Channel) -> Application:
        messages = JsonMessages(LargeBodies(channel))
        return ConnectApplication([descriptor], channel, messages, max_message_bytes=1 << 20)

    listener = HttpListener(application, "127.0.0.1", 0)
    server = GrpcServer(
        Service(service.name, service.services, listeners=[listener]),
        ServiceSettings(),
        TokenAuthenticator(keys.verifier),
    )
    await server.start()
    return server, f"http://127.0.0.1:{listener.port}/{descriptor.full_name}"


async def test_a_port_in_use_is_named_and_nothing_is_left_listening(echo: Any, keys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = echo_service(echo, Endless().servicer(echo))
        grpc_port = pick_port()
        server = GrpcServer(
            Service(
                service.name,
                service.services,
                listeners=[HttpListener(hello, "127.0.0.1", port)],
            ),
            ServiceSettings(port=grpc_port),
            TokenAuthenticator(keys.verifier),
        )
        with pytest.raises(OSError, match=f"127.0.0.1:{port} for HTTP"):
            await server.start()
        assert listening_addresses(grpc_port) == set()


@pytest.mark.parametrize("grace", [None, 0.2])
async def test_a_stopping_server_ends_its_streams_as_unavailable(
    echo: Any, keys: Any, grace: float | None
) -> None:
    endless = Endless()
    server, url = await serve_connect(echo, keys, endless)
    request = json.dumps({"text": "x"}).encode()
    headers = dict(keys.metadata()) | {"content-type": "application/connect+json"}
    body = b""
    async with httpx2.AsyncClient(base_url=url) as client:
        async with client.stream(
            "POST",
            "/Count",
            content=b"\0" + len(request).to_bytes(4, "big") + request,
            headers=headers,
        ) as response:
            await endless.until_waiting(1)
            stopping = asyncio.create_task(server.stop(grace))
            async for piece in response.aiter_raw():
                body += piece
        async with asyncio.timeout(10):
            await stopping
        with pytest.raises(httpx2.ConnectError):
            await client.get("/")
    assert b'"code": "unavailable"' in body
    assert endless.cleaned_up == 1


@pytest.mark.parametrize("method", ["Echo", "Count"])
async def test_a_client_that_disconnects_ends_its_call(echo: Any, keys: Any, method: str) -> None:
    endless = Endless()
    server, url = await serve_connect(echo, keys, endless)
    request, content_type = b'{"text": "x"}', "application/json"
    if method == "Count":
        request = b"\0" + len(request).to_bytes(4, "big") + request
        content_type = "application/connect+json"
    headers = dict(keys.metadata()) | {"content-type": content_type}
    async with httpx2.AsyncClient(base_url=url) as client:
        call = asyncio.create_task(client.post(f"/{method}", content=request, headers=headers))
        await endless.until_waiting(1)
        call.cancel()
    async with asyncio.timeout(10):
        while not endless.cleaned_up:
            await asyncio.sleep(0.01)
    await server.stop(0)


def endless(_: grpc.aio.Channel) -> Application:
    """An application whose response ends with the listener only."""

    async def respond(scope: Scope, _: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await scope[EXTENSIONS][ENDING].wait()
        await send({"type": "http.response.body", "body": b"last"})

    return respond


async def test_endless_response_ends_when_the_listener_is_stopped() -> None:
    listener = HttpListener(endless, "127.0.0.1", 0)
    channel: Any = NoChannel()
    await listener.start(channel)
    async with (
        httpx2.AsyncClient() as client,
        client.stream("GET", f"http://127.0.0.1:{listener.port}/") as response,
    ):
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"first"
        stopping = asyncio.create_task(listener.stop())
        assert await anext(chunks) == b"last"
    await stopping
