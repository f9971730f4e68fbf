"""The agent whose memory the MCP server offers, and connections to its gateway."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from strata.api.gateway.v1 import admin_service_pb2
from strata.cli.client import Client, connected
from strata.cli.connection import Target
from strata.shared.search.time_expressions import zone_of

_WRITE = "write"


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """One agent with the gateway and the permissions of an API key.

    Attributes:
        target: Returns address and key of the gateway. It is called before each call, because an
            MCP server runs for days, and Strata may be restarted elsewhere or with another key.
        agent_id: The agent.
        agent_name: Its name.
        timezone: Time zone of the agent.
        may_write: Whether the key may change anything.
    """

    target: Callable[[], Target]
    agent_id: str
    agent_name: str
    timezone: ZoneInfo
    may_write: bool

    def connected(self) -> AbstractAsyncContextManager[Client]:
        """Returns a connection to the gateway, for one call.

        Raises:
            StrataError: The gateway or the key cannot be found.
            UnreachableError: Nothing answers; when the connection is entered or used.
        """
        return connected(self.target())


async def open_memory(target: Callable[[], Target], agent: str) -> AgentMemory:
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
    return AgentMemory(
        target,
        looked_up.id,
        looked_up.name,
        zone_of(looked_up.timezone),
        _WRITE in who.api_key.scopes,
    )
