"""Fixtures that serve one servicer over a socket or in process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from grpc_tools import protoc

from callers import TokenKeys
from strata.shared.channels import ChannelFactory
from strata.shared.context import Caller, RequestContext, use
from strata.shared.inprocess import InProcessNetwork
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.interceptors.client import ClientChannel
from strata.shared.server import GrpcServer
from strata.shared.service import GrpcService, Service
from strata.shared.settings import ServerLimits, ServiceSettings
from strata.shared.telemetry import Telemetry
from strata.shared.tracing.spans import Tracer

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The generated modules of echo.proto: `pb` and `pb_grpc`."""
    out = tmp_path_factory.mktemp("generated")
    arguments = ["", f"-I{HERE}", f"--python_out={out}", f"--grpc_python_out={out}", "echo.proto"]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, str(out))
    try:
        pb = importlib.import_module("echo_pb2")
        pb_grpc = importlib.import_module("echo_pb2_grpc")
        yield SimpleNamespace(pb=pb, pb_grpc=pb_grpc)
    finally:
        sys.path.remove(str(out))


@dataclass
class Served:
    """A servicer that is being served.

    Attributes:
        stub: Calls it through the client side of the calls.
        raw: The transport alone: no context is sent, `AioRpcError` is raised.
        telemetry: The metrics of the server.
    """

    stub: Any
    channel: ClientChannel
    raw: grpc.aio.Channel
    telemetry: Telemetry


class Keys(TokenKeys):
    """Makes tokens, and calls with them."""

    def caller(self, project_id: str = "project-1", **more: Any) -> Caller:
        scopes = more.pop("scopes", frozenset({"agents:read"}))
        token = self.signer.mint("organization-1", project_id, "key-1", scopes, **more)
        return self.verifier.verify(token)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.caller().token}"),)

    @contextmanager
    def signed_in(self, **context: Any) -> Iterator[RequestContext]:
        defaults: dict[str, Any] = {
            "caller": self.caller(),
            "request_id": "req-test",
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        }
        with use(RequestContext(**{**defaults, **context})) as current:
            yield current


@pytest.fixture(scope="session")
def keys() -> Keys:
    return Keys.generate()


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture(params=["socket", "inprocess"])
async def serve(request: pytest.FixtureRequest, echo: Any, keys: Keys) -> AsyncIterator[Serve]:
    """Serves a servicer; limits are given as keywords."""
    async with AsyncExitStack() as stack:

        async def start(servicer: object, *, tracer: Tracer | None = None, **limits: Any) -> Served:
            telemetry = Telemetry(tracer=tracer)
            settings = ServiceSettings(limits=ServerLimits(**limits), grace_s=0.1)
            full_name = echo.pb.DESCRIPTOR.services_by_name["EchoService"].full_name
            add = echo.pb_grpc.add_EchoServiceServicer_to_server
            service = Service("echo", [GrpcService(full_name, add, servicer)])
            if request.param == "socket":
                server = GrpcServer(service, settings, TokenAuthenticator(keys.verifier), telemetry)
                await server.start()
                stack.push_async_callback(server.stop, 0.1)
                factory = ChannelFactory()
                stack.push_async_callback(factory.close)
                services = echo.pb.DESCRIPTOR.services_by_name.values()
                channel = factory.channel(server.address, services)
                raw = grpc.aio.insecure_channel(server.address)
                stack.push_async_callback(raw.close)
            else:
                network = InProcessNetwork(keys.verifier, telemetry=telemetry)
                stack.push_async_callback(network.close, 0.1)
                network.register(service, settings)
                channel, raw = network.channel("echo"), network.raw_channel("echo")
            return Served(echo.pb_grpc.EchoServiceStub(channel), channel, raw, telemetry)

        yield start
