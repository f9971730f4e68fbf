"""The parts that all partitions of a gateway share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from strata.gateway.project_callers import ProjectCallers
from strata.gateway.retention.messages import MessageRetention
from strata.gateway.runs.clients import AgentDirectory
from strata.gateway.runs.domain import timing
from strata.gateway.runs.events.peers import Peers
from strata.gateway.settings import GatewaySettings
from strata.shared.auth import TokenSigner
from strata.shared.ids import new_id
from strata.shared.release import release
from strata.shared.service import Wiring
from strata.shared.web.fetcher import Fetcher, FetchLimits
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard


@dataclass(frozen=True, slots=True)
class WebhookRequests:
    """The objects that check and send the requests of webhooks."""

    guard: Guard
    fetcher: Fetcher


@dataclass(frozen=True, slots=True)
class CommonParts:
    """The parts that all partitions share.

    Attributes:
        settings: The settings of the gateway.
        wiring: The shared parts of the process.
        signer: Signs the tokens for calls to the services.
        project_callers: Makes callers for background work of a project.
        owner: ID of this gateway process in the leases of runs; unique for each start.
        agents: Finds agents, and caches them.
        peers: The other gateways.
        message_retention: Reads for how long projects keep messages.
        webhook_requests: Checks and sends the requests of webhooks.
    """

    settings: GatewaySettings
    wiring: Wiring
    signer: TokenSigner
    project_callers: ProjectCallers
    owner: str
    agents: AgentDirectory
    peers: Peers
    message_retention: MessageRetention
    webhook_requests: WebhookRequests


async def build_common(
    settings: GatewaySettings,
    wiring: Wiring,
    signer: TokenSigner,
    project_callers: ProjectCallers,
    stack: AsyncExitStack,
) -> CommonParts:
    """Builds the parts; the stack closes them."""
    peers = Peers(settings.advertised_address)
    stack.push_async_callback(peers.close)
    return CommonParts(
        settings=settings,
        wiring=wiring,
        signer=signer,
        project_callers=project_callers,
        owner=new_id("gateway"),
        agents=AgentDirectory(
            wiring.channel("agent_loop"), wiring.clock, ttl_s=timing.AGENT_CACHE_S
        ),
        peers=peers,
        message_retention=MessageRetention(wiring.channel("recall"), project_callers),
        webhook_requests=await _open_webhook_requests(settings, stack),
    )


async def _open_webhook_requests(
    settings: GatewaySettings, stack: AsyncExitStack
) -> WebhookRequests:
    resolver = SystemResolver()
    stack.callback(resolver.close)
    guard = Guard(
        resolver,
        private_networks=settings.webhook_private_networks,
        ports=settings.webhook_ports,
    )
    limits = FetchLimits(total_s=settings.webhook_timeout_s, redirects=0)
    fetcher = await stack.enter_async_context(
        Fetcher(guard, limits, user_agent=f"Strata/{release()}")
    )
    return WebhookRequests(guard, fetcher)
