"""Versions of blocks, and the names of their authors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.gateway.v1 import admin_service_pb2
from strata.cli.client import GatewayClient
from strata.cli.memory.blocks import known_block_id
from strata.protocol.errors import NotFoundError
from strata.shared.agent_mcp.blocks import blocks_of

# Versions contain whole texts: more of them might exceed the size of a message.
_PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A version and the one before it.

    Attributes:
        version: The version.
        before: The version before it; None for the first one.
    """

    version: pb.BlockVersion
    before: pb.BlockVersion | None


class Names:
    """Names of editors: agents, each looked up once, and the person behind the API key.

    Args:
        client: The gateway.
    """

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self._names: dict[str, str] = {}
        self._own_key = ""

    async def learn(self, agent_ids: Iterable[str]) -> None:
        """Looks up the names of agents; a deleted agent keeps its id as name."""
        if not self._own_key:
            who = await self._client.admin.WhoAmI(admin_service_pb2.WhoAmIRequest())
            self._own_key = who.api_key.id
        for agent_id in set(agent_ids) - {"", *self._names}:
            request = agent_service_pb2.GetAgentRequest(agent_id=agent_id)
            try:
                self._names[agent_id] = (await self._client.agents.GetAgent(request)).agent.name
            except NotFoundError:
                self._names[agent_id] = agent_id

    def who(self, origin: pb.EditOrigin, principal: str) -> str:
        """Returns the name of the editor of a version."""
        name = self._names.get(origin.agent_id, origin.agent_id)
        match origin.kind:
            case pb.EDITOR_KIND_SLEEPTIME_AGENT:
                return f"sleeptime agent {name}".strip()
            case pb.EDITOR_KIND_AGENT:
                return f"agent {name}".strip()
            case pb.EDITOR_KIND_UNSPECIFIED if name:
                return f"agent {name}"
            case _:
                return self._person(principal)

    def _person(self, principal: str) -> str:
        if principal and principal == self._own_key:
            return "you"
        return f"user {principal}".strip()


async def history_of(client: GatewayClient, block_id: str, limit: int) -> list[VersionChange]:
    """Returns the newest versions of a block, newest first."""
    versions: list[pb.BlockVersion] = []
    request = pb.ListBlockVersionsRequest(block_id=block_id)
    # One more than is shown, for the diff of the oldest one.
    while len(versions) <= limit:
        request.page_size = min(_PAGE_SIZE, limit + 1 - len(versions))
        page = await client.blocks.ListBlockVersions(request)
        versions.extend(page.versions)
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    before: list[pb.BlockVersion | None] = [*versions[1:], None]
    return [VersionChange(*pair) for pair in zip(versions, before, strict=True)][:limit]


async def newest_steps(
    client: GatewayClient, agent_id: str, label: str, limit: int
) -> list[VersionChange]:
    """Returns the newest versions of one block of an agent, or of all; newest first.

    Raises:
        NotFoundError: The agent has and had no such block (``BLOCK_NOT_FOUND``).
    """
    if label:
        block_ids = [await known_block_id(client, agent_id, label)]
    else:
        block_ids = [block.id for block in await blocks_of(client, agent_id)]
    steps = [step for block_id in block_ids for step in await history_of(client, block_id, limit)]
    steps.sort(key=lambda step: step.version.create_time.ToNanoseconds(), reverse=True)
    return steps[:limit]
