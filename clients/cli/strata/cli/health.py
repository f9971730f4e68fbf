"""Health of a gateway, of the services behind it and of the indexes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.archival.v1 import archive_service_pb2
from strata.api.common.v1.search_pb2 import IndexState
from strata.api.core_memory.v1 import block_service_pb2
from strata.api.gateway.v1 import admin_service_pb2
from strata.api.recall.v1 import message_service_pb2
from strata.api.tool_execution.v1 import tool_service_pb2, tool_service_pb2_grpc
from strata.cli.client import GatewayClient
from strata.cli.indexes import COLLECTIONS, whole_index
from strata.client.services import is_transport_failure
from strata.protocol.errors import DeadlineExceededError, StrataError, UnavailableError
from strata.shared.clock_skew import server_time, skew_between

_PROBE_S = 5.0
_PAGE_SIZE = 500
_MAX_PAGES = 20


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Health of one service.

    Attributes:
        service: Its name.
        answers: Whether it answers calls.
        detail: Why it does not answer.
        skew_s: Lower bound of how far its clock is ahead of this machine's, in seconds; None if
            it sent no time.
    """

    service: str
    answers: bool
    detail: str = ""
    skew_s: float | None = None


@dataclass(frozen=True, slots=True)
class GatewayState:
    """State of a gateway.

    Attributes:
        serving: Whether it accepts calls; False while it starts or stops.
        version: Release of the server.
        project: Name of the key's project.
        scopes: Scopes of the key.
        skew_s: Lower bound of how far its clock is ahead of this machine's, in seconds; None if
            it sent no time.
    """

    serving: bool
    version: str
    project: str
    scopes: tuple[str, ...]
    skew_s: float | None = None


async def gateway_state(client: GatewayClient) -> GatewayState:
    """Returns the state of the gateway.

    Raises:
        StrataError: It does not answer, or refuses the key.
    """
    # The stubs of this package are not typed.
    health: Any = health_pb2_grpc.HealthStub(client.channel)
    checked = await health.Check(health_pb2.HealthCheckRequest(), timeout=_PROBE_S)
    sent = time.time()
    asking = client.admin.WhoAmI(admin_service_pb2.WhoAmIRequest(), timeout=_PROBE_S)
    who = await asking
    skew_s = _skew(await asking.trailing_metadata(), sent)
    return GatewayState(
        serving=checked.status == health_pb2.HealthCheckResponse.SERVING,
        version=who.server_version,
        project=who.project.name or who.project.id,
        scopes=tuple(who.api_key.scopes),
        skew_s=skew_s,
    )


async def service_states(client: GatewayClient) -> list[ServiceState]:
    """Returns the health of each service behind the gateway.

    The gateway does not forward health checks, so each service gets a small read that succeeds in
    every project, so that metrics count no failed call. Any status of the service counts as an
    answer, even that the key may not read this.
    """
    tools = tool_service_pb2_grpc.ToolServiceStub(client.channel)
    probes: dict[str, Any] = {
        "agent_loop": client.agents.ListAgents(
            agent_service_pb2.ListAgentsRequest(page_size=1), timeout=_PROBE_S
        ),
        "core_memory": client.blocks.ListBlocks(
            block_service_pb2.ListBlocksRequest(page_size=1), timeout=_PROBE_S
        ),
        "recall": client.messages.GetRetention(
            message_service_pb2.GetRetentionRequest(), timeout=_PROBE_S
        ),
        "archival": client.archives.ListArchives(
            archive_service_pb2.ListArchivesRequest(page_size=1), timeout=_PROBE_S
        ),
        "tool_execution": tools.ListTools(
            tool_service_pb2.ListToolsRequest(page_size=1), timeout=_PROBE_S
        ),
        # Only tool execution can call the tool runner, and returns its state.
        "tool_runner": tools.GetToolRunner(
            tool_service_pb2.GetToolRunnerRequest(), timeout=_PROBE_S
        ),
    }
    return list(
        await asyncio.gather(*(_state(service, probe) for service, probe in probes.items()))
    )


async def _state(service: str, probe: Any) -> ServiceState:
    sent = time.time()
    try:
        await probe
    except (UnavailableError, DeadlineExceededError) as error:
        if is_transport_failure(error) and isinstance(error, UnavailableError):
            raise
        return ServiceState(service, answers=False, detail=error.message)
    except StrataError:
        pass
    return ServiceState(service, answers=True, skew_s=_skew(await probe.trailing_metadata(), sent))


def _skew(trailing: Any, sent: float) -> float | None:
    server = server_time(trailing)
    return None if server is None else skew_between(server, sent, time.time())


async def index_states(client: GatewayClient) -> list[IndexState]:
    """Returns the state of each index that the key may read."""
    states = []
    for name in COLLECTIONS:
        try:
            states.append(await whole_index(client, name).state())
        except StrataError:
            continue
    return states


async def count_agents(client: GatewayClient) -> str:
    """Returns the number of agents in the project; ``10000+`` if there are more."""
    request = agent_service_pb2.ListAgentsRequest(page_size=_PAGE_SIZE, names_only=True)
    count = 0
    for _ in range(_MAX_PAGES):
        page = await client.agents.ListAgents(request)
        count += len(page.agents)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return str(count)
    return f"{count}+"
