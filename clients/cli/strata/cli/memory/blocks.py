"""Finds memory blocks and their versions, including detached and deleted blocks."""

from __future__ import annotations

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.client.calls.pages import pages

_VERSIONS = 20


async def known_block_id(client: GatewayClient, agent_id: str, label: str) -> str:
    """Returns the id of the agent's block with this label, attached or formerly attached.

    Raises:
        NotFoundError: It never had such a block (``BLOCK_NOT_FOUND``).
    """
    request = pb.GetBlockRequest(agent_id=agent_id, label=label, show_detached=True)
    return (await client.blocks.GetBlock(request)).block.id


async def newest_version(client: GatewayClient, block_id: str) -> pb.BlockVersion:
    """Returns the newest version of a block, also of a deleted one.

    Raises:
        NotFoundError: There is no such block, or it was purged (``BLOCK_NOT_FOUND``).
    """
    request = pb.ListBlockVersionsRequest(block_id=block_id, page_size=1)
    return (await client.blocks.ListBlockVersions(request)).versions[0]


async def version_at(client: GatewayClient, block_id: str, revision: int) -> pb.BlockVersion | None:
    """Returns the version with this revision; None if the block has no such revision."""
    request = pb.ListBlockVersionsRequest(block_id=block_id, page_size=_VERSIONS)
    async for page in pages(client.blocks.ListBlockVersions, request):
        # Versions are listed from the newest to the oldest.
        for version in page.versions:
            if version.revision == revision:
                return version
            if version.revision < revision:
                return None
    return None
