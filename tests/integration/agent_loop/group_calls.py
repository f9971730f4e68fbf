"""Groups, and the agents and blocks in them."""

from __future__ import annotations

from typing import Any

from inner_services import InnerServices
from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb


async def agents(services: InnerServices, count: int) -> list[str]:
    return [(await services.make_agent()).id for _ in range(count)]


async def block(services: InnerServices, label: str = "plan") -> str:
    made = await services.blocks.CreateBlock(
        block_pb.CreateBlockRequest(block=block_pb.NewBlock(label=label, value="Ship it."))
    )
    return str(made.block.id)


async def labels(services: InnerServices, agent_id: str) -> list[str]:
    listed = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent_id))
    return [block.label for block in listed.blocks]


async def create(services: InnerServices, **fields: Any) -> pb.Group:
    return (await services.groups.CreateGroup(pb.CreateGroupRequest(**fields))).group


async def get(services: InnerServices, group_id: str) -> pb.Group:
    return (await services.groups.GetGroup(pb.GetGroupRequest(group_id=group_id))).group


def members(group: pb.Group) -> list[str]:
    return [member.agent_id for member in group.members]
