"""The agent whose memory is served, and the way to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from strata.api.gateway.v1 import admin_service_pb2
from strata.cli.client import Client, connected
from strata.cli.connection import Target

_WRITE = "write"


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """One agent, as the holder of an API key reaches it.

    Attributes:
        target: Finds the gateway. It is asked before each call: a server of this kind runs
            for days, and Strata may meanwhile be started anew, elsewhere or with another key.
        agent_id: The agent.
        agent_name: Its name.
        timezone: In which it writes times.
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
    """Looks up an agent, and what the key may do.

    Args:
        target: Finds the gateway.
        agent: Name or id.

    Raises:
        NotFoundError: There is no such agent (``AGENT_NOT_FOUND``).
        UnreachableError: No gateway answers.
        StrataError: The gateway refuses.
    """
    async with connected(target()) as client:
        found = await client.agent(agent)
        who = await client.admin.WhoAmI(admin_service_pb2.WhoAmIRequest())
    return AgentMemory(
        target, found.id, found.name, _zone(found.timezone), _WRITE in who.api_key.scopes
    )


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return ZoneInfo("UTC")
