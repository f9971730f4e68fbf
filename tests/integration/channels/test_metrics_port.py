"""The metrics port of a service."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc.aio
import httpx2
import pytest

from integration.channels.conftest import Start
from listening import listening_addresses
from scraping import scrape
from strata.shared.metric_names import RPC_REQUESTS


@pytest.fixture
def servicer(echo: Any) -> object:
    class Servicer(echo.pb_grpc.EchoServiceServicer):  # type: ignore[misc]
        async def Echo(self, request: Any, context: Any) -> Any:
            return request

    return Servicer()


def url(port: int | None) -> str:
    assert port
    return f"http://127.0.0.1:{port}"


async def test_calls_are_counted_in_the_scraped_metrics(
    start: Start, servicer: object, echo: Any, keys: Any
) -> None:
    server = await start(servicer, metrics_port=0)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = echo.pb_grpc.EchoServiceStub(channel)
        for _ in range(3):
            await stub.Echo(echo.pb.Note(text="x"), metadata=keys.metadata())
    read = await scrape(url(server.metrics_port))
    [counted] = read.matching(RPC_REQUESTS, code="OK")
    assert counted.labels["method"].endswith("/Echo")
    assert counted.value == 3


async def test_the_metrics_port_is_off_by_default(start: Start, servicer: object) -> None:
    assert (await start(servicer)).metrics_port is None


async def test_a_service_on_a_unix_socket_serves_metrics_on_loopback(
    start: Start, servicer: object, tmp_path: Path
) -> None:
    server = await start(servicer, host=f"unix:{tmp_path}/s", metrics_port=0)
    assert (await scrape(url(server.metrics_port))).samples


async def test_the_metrics_port_can_have_its_own_address(start: Start, servicer: object) -> None:
    server = await start(servicer, metrics_port=0, metrics_host="127.0.0.2")
    assert (await scrape(f"http://127.0.0.2:{server.metrics_port}")).samples
    assert listening_addresses(server.metrics_port) == {"127.0.0.2"}


async def test_a_used_metrics_port_fails_the_start(start: Start, servicer: object) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="cannot listen on"),
    ):
        await start(servicer, metrics_port=taken.getsockname()[1])


async def test_health_changes_while_the_service_drains_and_the_port_closes_at_the_end(
    start: Start, servicer: object
) -> None:
    server = await start(servicer, metrics_port=0)
    base_url = url(server.metrics_port)
    async with httpx2.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{base_url}/healthz")).status_code == 200
        await server.drain()
        assert (await client.get(f"{base_url}/healthz")).status_code == 503
    async with asyncio.timeout(10):
        await server.stop(1)
    assert listening_addresses(server.metrics_port) == set()
