"""Services of every shape behind real sockets, and channels to several of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from contract.channels.conftest import echo, keys
from polling import eventually
from strata.shared.auth import TokenVerifier
from strata.shared.channels import ChannelFactory
from strata.shared.clock import Clock, SystemClock
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.metric_names import RPC_REQUESTS
from strata.shared.server import GrpcServer
from strata.shared.service import GrpcService, Service
from strata.shared.settings import ServiceSettings

__all__ = ["echo", "keys"]

Start = Callable[..., Awaitable[GrpcServer]]


def targets(servers: Iterable[GrpcServer]) -> str:
    """Returns one gRPC target for several servers, used in turn."""
    return "ipv4:" + ",".join(server.address for server in servers)


def refusals(server: GrpcServer) -> float:
    """Returns how many calls a server refused for their token."""
    return server.telemetry.total(RPC_REQUESTS, code="UNAUTHENTICATED")


async def check_refusals(server: GrpcServer, expected: int) -> None:
    """Checks how many calls a server refused; it counts a call after it has answered."""
    await eventually(lambda: refusals(server) >= expected)
    assert refusals(server) == expected


def echo_service(echo: Any, servicer: object) -> Service:
    """Returns a service `echo` with this servicer."""
    full_name = echo.pb.DESCRIPTOR.services_by_name["EchoService"].full_name
    add = echo.pb_grpc.add_EchoServiceServicer_to_server
    return Service("echo", [GrpcService(full_name, add, servicer)])


def stub_to(target: str, factory: ChannelFactory, echo: Any, peer: str = "echo") -> Any:
    """Returns a stub to the service at a target."""
    services = echo.pb.DESCRIPTOR.services_by_name.values()
    return echo.pb_grpc.EchoServiceStub(factory.channel(target, services, peer=peer))


@pytest.fixture
async def start(echo: Any, keys: Any) -> AsyncIterator[Start]:
    """Starts a server for a servicer, on a clock; settings as keywords."""
    async with AsyncExitStack() as stack:

        async def serve(
            servicer: object, *, clock: Clock | None = None, **settings: Any
        ) -> GrpcServer:
            clock = clock or SystemClock()
            verifier = TokenVerifier(keys.public, clock=clock)
            server = GrpcServer(
                echo_service(echo, servicer),
                ServiceSettings(**settings),
                TokenAuthenticator(verifier),
                clock=clock,
            )
            await server.start()
            stack.push_async_callback(server.stop, 0)
            return server

        yield serve
