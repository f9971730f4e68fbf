"""One service in the test's process, and a channel to it over a socket or in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from strata.shared.auth import TokenVerifier
from strata.shared.channels import ChannelFactory, services_of
from strata.shared.inprocess import InProcessNetwork
from strata.shared.server import serving
from strata.shared.service import BackgroundTasks


@asynccontextmanager
async def service_channel(
    transport: str, build: Any, settings: Any, verifier: TokenVerifier
) -> AsyncIterator[Any]:
    """Runs a service and yields a channel to it.

    Args:
        transport: ``socket`` or ``inprocess``.
        build: The function `build` of the service's module `main`.
        settings: The settings of the service.
        verifier: Verifies the tokens of in-process calls; over a socket, the settings define it.
    """
    name = build.__module__.split(".")[1]
    async with AsyncExitStack() as stack:
        if transport == "socket":
            server = await stack.enter_async_context(serving(build, settings))
            factory = ChannelFactory()
            stack.push_async_callback(factory.close)
            yield factory.channel(server.address, services_of(name))
        else:
            network = InProcessNetwork(verifier)
            service = await build(settings, network, stack)
            network.register(service, settings)
            await stack.enter_async_context(BackgroundTasks(service))
            stack.push_async_callback(network.close)
            yield network.channel(name)
