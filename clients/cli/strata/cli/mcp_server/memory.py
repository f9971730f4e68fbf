"""Looks up the agent whose memory the MCP server offers."""

from __future__ import annotations

from collections.abc import Callable

from strata.api.gateway.v1 import admin_service_pb2
from strata.cli.client import connected
from strata.cli.connection import Target
from strata.cli.failures import error_lines
from strata.shared.agent_mcp.memory import ConnectedAgent
from strata.shared.search.time_expressions import zone_of

_WRITE = "write"


async def open_memory(target: Callable[[], Target], agent: str) -> ConnectedAgent:
    """Looks up an agent and the permissions of the key.

    Args:
        target: Returns address and key of the gateway.
        agent: Name or id.

    Raises:
        NotFoundError: There is no such agent (``AGENT_NOT_FOUND``).
        UnreachableError: No gateway answers.
        StrataError: The gateway refuses.
    """
    async with connected(target()) as client:
        looked_up = await client.agent(agent)
        who = await client.admin.WhoAmI(admin_service_pb2.WhoAmIRequest())
    return ConnectedAgent(
        lambda: connected(target()),
        lambda error: "\n".join(error_lines(error)),
        looked_up.id,
        looked_up.name,
        zone_of(looked_up.timezone),
        _WRITE in who.api_key.scopes,
    )
