"""Look-up of memory blocks and of their versions, including detached and deleted blocks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.agent_loop.v1 import agent_service_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import Client, first_of
from strata.protocol.errors import NotFoundError, Reason

_MAX_BLOCKS = 500
_VERSIONS = 20
_MAX_SEARCHED_BLOCKS = 5_000
_MAX_CHECKED_BLOCKS = 50


async def blocks_of(client: Client, agent_id: str) -> list[pb.Block]:
    """Returns the blocks that an agent sees, in their order."""
    request = pb.ListBlocksRequest(agent_id=agent_id)
    listing = await first_of(client.blocks.ListBlocks, request, "blocks", _MAX_BLOCKS)
    return list(listing.blocks)


async def attached_block(
    client: Client, agent_id: str, label: str, as_of: Timestamp | None = None
) -> pb.Block:
    """Returns the block of an agent with this label.

    Raises:
        NotFoundError: The agent has or had no such block (``BLOCK_NOT_FOUND``).
    """
    request = pb.GetBlockRequest(agent_id=agent_id, label=label, as_of_time=as_of)
    return (await client.blocks.GetBlock(request)).block


async def known_block_id(client: Client, agent_id: str, label: str) -> str:
    """Returns the id of the agent's block with this label, attached or formerly attached.

    Raises:
        NotFoundError: It never had such a block (``BLOCK_NOT_FOUND``).
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
    """Returns the id of the last block with this label that an agent had; empty if there is none.

    The API has no list of past attachments, only look-ups at a point in time. This function looks
    at points in time that go back in doubling steps. A block that was attached only between two of
    them is searched among the detached blocks of the project. The later one of the two wins.
    """
    asked = agent_service_pb2.GetAgentRequest(agent_id=agent_id)
    agent = (await client.agents.GetAgent(asked)).agent
    for time in _times_back_to(agent.create_time.ToDatetime(tzinfo=UTC)):
        block_id = await _block_id_at(client, agent_id, label, _stamp(time))
        if block_id:
            later, searched = await _last_among_detached(client, agent_id, label)
            return searched if later > time else block_id
    return (await _last_among_detached(client, agent_id, label))[1]


async def _last_among_detached(client: Client, agent_id: str, label: str) -> tuple[datetime, str]:
    """Returns the last changed of the detached blocks that the agent had, and when it had it."""
    request = pb.ListBlocksRequest(label=label, show_deleted=True)
    listing = await first_of(client.blocks.ListBlocks, request, "blocks", _MAX_SEARCHED_BLOCKS)
    loose = [block for block in listing.blocks if not block.agent_ids]
    loose.sort(key=lambda block: block.update_time.ToNanoseconds(), reverse=True)
    for block in loose[:_MAX_CHECKED_BLOCKS]:
        for time in _times_of(block):
            if await _block_id_at(client, agent_id, label, time) == block.id:
                return time.ToDatetime(tzinfo=UTC), block.id
    return datetime.min.replace(tzinfo=UTC), ""


async def _block_id_at(client: Client, agent_id: str, label: str, time: Timestamp) -> str:
    try:
        return (await attached_block(client, agent_id, label, time)).id
    except NotFoundError:
        return ""


def _times_back_to(beginning: datetime) -> Iterator[datetime]:
    now = datetime.now(UTC)
    ago = timedelta(seconds=1)
    while now - ago > beginning:
        yield now - ago
        ago *= 2


def _times_of(block: pb.Block) -> list[Timestamp]:
    moments = [block.create_time, block.update_time]
    if block.HasField("delete_time"):
        # The database has a resolution of microseconds.
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
    """Returns the version with this revision; None if the block has no such revision."""
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
