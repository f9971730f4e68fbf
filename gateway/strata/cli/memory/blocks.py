"""Finds blocks and versions: attached ones, lost ones, and texts of long ago."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import Client, first_of
from strata.shared.errors import NotFoundError, Reason

_ALL = 500
_VERSIONS = 20
_MOST_SEARCHED = 5_000
_MOST_ASKED = 50


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


async def known_block_id(client: Client, agent_id: str, label: str) -> str:
    """Returns the id of the block of an agent with this label, or of the one that it had.

    Raises:
        NotFoundError: It has and had none (``BLOCK_NOT_FOUND``).
    """
    try:
        return (await attached_block(client, agent_id, label)).id
    except NotFoundError as error:
        if error.reason is not Reason.BLOCK_NOT_FOUND:
            raise
        lost = await lost_block_id(client, agent_id, label)
        if not lost:
            raise
        return lost


async def lost_block_id(client: Client, agent_id: str, label: str) -> str:
    """Returns the block of this label that an agent had last; empty if there is none.

    The history of attachments cannot be listed, only asked for points in time. So it is
    asked for ever longer ago; what was there only in between is looked for among the
    blocks of the project. The later of the two is the last.
    """
    asked = agent_service_pb2.GetAgentRequest(agent_id=agent_id)
    agent = (await client.agents.GetAgent(asked)).agent
    for time in _moments_since(agent.create_time.ToDatetime(tzinfo=UTC)):
        found = await _had(client, agent_id, label, _stamp(time))
        if found:
            later, searched = await _searched(client, agent_id, label)
            return searched if later > time else found
    return (await _searched(client, agent_id, label))[1]


async def _searched(client: Client, agent_id: str, label: str) -> tuple[datetime, str]:
    """Returns the block that was changed last of those that the agent had, and when it had it."""
    request = pb.ListBlocksRequest(label=label, show_deleted=True)
    found = await first_of(client.blocks.ListBlocks, request, "blocks", _MOST_SEARCHED)
    loose = [block for block in found.blocks if not block.agent_ids]
    loose.sort(key=lambda block: block.update_time.ToNanoseconds(), reverse=True)
    for block in loose[:_MOST_ASKED]:
        for time in _moments_of(block):
            if await _had(client, agent_id, label, time) == block.id:
                return time.ToDatetime(tzinfo=UTC), block.id
    return datetime.min.replace(tzinfo=UTC), ""


async def _had(client: Client, agent_id: str, label: str, time: Timestamp) -> str:
    try:
        return (await attached_block(client, agent_id, label, time)).id
    except NotFoundError:
        return ""


def _moments_since(beginning: datetime) -> Iterator[datetime]:
    now = datetime.now(UTC)
    ago = timedelta(seconds=1)
    while now - ago > beginning:
        yield now - ago
        ago *= 2


def _moments_of(block: pb.Block) -> list[Timestamp]:
    moments = [block.create_time, block.update_time]
    if block.HasField("delete_time"):
        # The database counts microseconds.
        before = block.delete_time.ToDatetime(tzinfo=UTC) - timedelta(microseconds=1)
        moments.insert(0, _stamp(before))
    return moments


def _stamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


async def newest_version(client: Client, block_id: str) -> pb.BlockVersion:
    """Returns the newest version of a block, also of a deleted one.

    Raises:
        NotFoundError: There is no such block, or it was purged (``BLOCK_NOT_FOUND``).
    """
    request = pb.ListBlockVersionsRequest(block_id=block_id, page_size=1)
    return (await client.blocks.ListBlockVersions(request)).versions[0]


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
