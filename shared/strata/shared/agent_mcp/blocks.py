"""Look-up of the memory blocks of an agent."""

from __future__ import annotations

from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2_grpc

MAX_BLOCKS = 500


class BlockServices(Protocol):
    """The stubs of a client, as far as blocks need them."""

    @property
    def blocks(self) -> block_service_pb2_grpc.BlockServiceStub:
        """The stub of the BlockService."""
        ...


async def blocks_of(client: BlockServices, agent_id: str) -> list[pb.Block]:
    """Returns the blocks of an agent, in their order; at most `MAX_BLOCKS`."""
    request = pb.ListBlocksRequest(agent_id=agent_id, page_size=MAX_BLOCKS)
    return list((await client.blocks.ListBlocks(request)).blocks)


async def attached_block(
    client: BlockServices, agent_id: str, label: str, as_of: Timestamp | None = None
) -> pb.Block:
    """Returns the block of an agent with this label.

    Raises:
        NotFoundError: The agent has or had no such block (``BLOCK_NOT_FOUND``).
    """
    request = pb.GetBlockRequest(agent_id=agent_id, label=label, as_of_time=as_of)
    return (await client.blocks.GetBlock(request)).block
