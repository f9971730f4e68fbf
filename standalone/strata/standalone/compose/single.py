"""All services in one process: in-process channels between them, one socket outside."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.shared.auth import TokenVerifier
from strata.shared.inprocess import InProcessNetwork
from strata.shared.service import BackgroundTasks, Service
from strata.shared.settings import ServiceSettings, warn_about_unknown_variables
from strata.shared.telemetry import Telemetry
from strata.standalone.compose.local import Local
from strata.standalone.compose.services import ALL_SERVICES, GATEWAY, INNER_SERVICES, ServiceSpec


async def build_services(local: Local, telemetry: Telemetry, stack: AsyncExitStack) -> Service:
    """Builds every service, connects them in this process, and returns the gateway.

    Args:
        local: The parts below the services.
        telemetry: Gets the metrics of all services.
        stack: Closes the services, the gateway's parts first.
    """
    network = await stack.enter_async_context(
        InProcessNetwork(TokenVerifier(local.public_key), telemetry=telemetry)
    )
    for spec in ALL_SERVICES:
        warn_about_unknown_variables(spec.settings)
    for spec in INNER_SERVICES:
        await _open_service(spec, local, network, stack)
    gateway = await GATEWAY.build(local.gateway, network, stack)
    # Services call it too: an agent's tool sends messages to other agents.
    network.register(gateway, local.gateway)
    return gateway


async def _open_service(
    spec: ServiceSpec, local: Local, network: InProcessNetwork, stack: AsyncExitStack
) -> None:
    settings: ServiceSettings = spec.settings(**local.service_values(spec.name))
    service = await spec.build(settings, network, stack)
    network.register(service, settings)
    await stack.enter_async_context(BackgroundTasks(service))
