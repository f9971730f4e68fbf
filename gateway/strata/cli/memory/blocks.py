"""Finds blocks and versions: attached ones, lost ones, and texts of long ago."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import Client, first_of
from strata.cli.failures import UsageError
from strata.shared.errors import NotFoundError, Reason

_ALL = 500
_VERSIONS = 20


async def blocks_of(client: Client, agent_id: str) -> list[pb.Block]:
    """Returns the blocks that an agent sees, in their order."""
    request = pb.ListBlocksRequest(agent_id=agent_id)
    found = await first_of(client.blocks.ListBlocks, request, "blocks", _ALL)
    return list(found.blocks)


async def attached_block(
    client: Client, agent_id: str, label: str, as_of: Timestamp | None = None
) -> pb.Block:
    """Returns the block of an agent with this label.

    Raises:
        NotFoundError: The agent has, or had then, none (``BLOCK_NOT_FOUND``).
    """
    request = pb.GetBlockRequest(agent_id=agent_id, label=label, as_of_time=as_of)
    return (await client.blocks.GetBlock(request)).block


async def known_block(client: Client, agent_id: str, label: str) -> pb.Block:
    """Returns the block of an agent with this label, or the one that it had.

    Raises:
        NotFoundError: It has and had none (``BLOCK_NOT_FOUND``).
        UsageError: It had several, and has none now.
    """
    try:
        return await attached_block(client, agent_id, label)
    except NotFoundError as error:
        if error.reason is not Reason.BLOCK_NOT_FOUND:
            raise
        lost = await lost_blocks(client, agent_id, label)
        if not lost:
            raise
        return the_only(lost, label)


async def lost_blocks(client: Client, agent_id: str, label: str) -> list[pb.Block]:
    """Returns blocks of this label that an agent had: deleted ones, and detached ones.

    The history of attachments cannot be listed, only asked for points in time: those at
    which the block was made, last changed and deleted.
    """
    request = pb.ListBlocksRequest(label=label, show_deleted=True)
    found = await first_of(client.blocks.ListBlocks, request, "blocks", _ALL)
    return [
        block
        for block in found.blocks
        if agent_id not in block.agent_ids and await _had(client, agent_id, block)
    ]


def the_only(blocks: list[pb.Block], label: str) -> pb.Block:
    """Returns the one block of a list.

    Raises:
        UsageError: There are several.
    """
    if len(blocks) > 1:
        ids = ", ".join(block.id for block in blocks)
        raise UsageError(f'The agent had several blocks "{label}". Give --block and one of {ids}.')
    return blocks[0]


async def _had(client: Client, agent_id: str, block: pb.Block) -> bool:
    for time in _moments(block):
        try:
            then = await attached_block(client, agent_id, block.label, time)
        except NotFoundError:
            continue
        if then.id == block.id:
            return True
    return False


def _moments(block: pb.Block) -> list[Timestamp]:
    moments = [block.create_time, block.update_time]
    if block.HasField("delete_time"):
        before = Timestamp()
        # The database counts microseconds.
        before.FromDatetime(block.delete_time.ToDatetime() - timedelta(microseconds=1))
        moments.insert(0, before)
    return moments


async def version_at(client: Client, block_id: str, revision: int) -> pb.BlockVersion | None:
    """Returns the version that a revision made; None if the block has no such revision."""
    request = pb.ListBlockVersionsRequest(block_id=block_id, page_size=_VERSIONS)
    while True:
        page = await client.blocks.ListBlockVersions(request)
        for version in page.versions:
            if version.revision == revision:
                return version
            if version.revision < revision:
                return None
        if not page.next_page_token:
            return None
        request.page_token = page.next_page_token
