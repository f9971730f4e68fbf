"""A small service of raw bytes, served over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from callers import TokenKeys
from strata.shared.auth import TokenVerifier
from strata.shared.channels import ChannelFactory
from strata.shared.context import Caller
from strata.shared.interceptors.auth import TokenAuthenticator
from strata.shared.server import GrpcServer
from strata.shared.service import GrpcService, Service
from strata.shared.settings import ServiceSettings

Behavior = Callable[[Any, Any], Any]


def make_service(behaviors: Mapping[str, Behavior], name: str = "raw") -> Service:
    """Returns a service with one service `strata.testing.Raw` of unary methods on bytes."""

    def add(servicer: Any, server: Any) -> None:
        handlers: dict[str, Any] = {
            method: grpc.unary_unary_rpc_method_handler(behavior)
            for method, behavior in servicer.items()
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("strata.testing.Raw", handlers),)
        )

    return Service(name, [GrpcService("strata.testing.Raw", add, behaviors)])


@pytest.fixture(scope="session")
def verifier(keys: TokenKeys) -> TokenVerifier:
    return keys.verifier


@pytest.fixture
def caller(keys: TokenKeys) -> Caller:
    # A new token for each test: a session lasts longer than a token.
    return keys.verifier.verify(keys.signer.mint("org", "project-1", "key-1", ()))


@pytest.fixture
async def factory() -> AsyncIterator[ChannelFactory]:
    made = ChannelFactory()
    yield made
    await made.close()


@pytest.fixture
async def start(verifier: TokenVerifier) -> AsyncIterator[Callable[..., Awaitable[GrpcServer]]]:
    """Starts a server for behaviours by method name; settings as keywords."""
    async with AsyncExitStack() as stack:

        async def serve(behaviors: Mapping[str, Behavior], **settings: Any) -> GrpcServer:
            server = GrpcServer(
                make_service(behaviors), ServiceSettings(**settings), TokenAuthenticator(verifier)
            )
            await server.start()
            stack.push_async_callback(server.stop, 0)
            return server

        yield serve


@pytest.fixture
def service_of() -> Callable[..., Service]:
    return make_service
