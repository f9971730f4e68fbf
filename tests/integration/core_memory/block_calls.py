"""Calls of BlockService for one agent."""

from __future__ import annotations

from typing import Any

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.shared.ids import new_id

AGENT = new_id("agent")
"""An agent; each test prepares it in its own project."""


async def prepare(client: Any, agent_id: str = AGENT) -> str:
    """Prepares the core memory of an agent, and returns its id."""
    await prepare_blocks(client, agent_id)
    return agent_id


async def prepare_blocks(client: Any, agent_id: str, **fields: Any) -> list[pb.Block]:
    """Prepares the core memory of an agent, and returns its blocks."""
    request = context_pb.PrepareAgentRequest(agent_id=agent_id, **fields)
    return list((await client.context.PrepareAgent(request)).blocks)


async def create(
    client: Any,
    label: str = "human",
    value: str = "",
    *,
    agent_id: str = AGENT,
    request_id: str = "",
    **fields: Any,
) -> pb.Block:
    """Creates a block of an agent, of none if `agent_id` is empty."""
    block = pb.NewBlock(label=label, value=value, **fields)
    request = pb.CreateBlockRequest(block=block, agent_id=agent_id, request_id=request_id)
    response: pb.CreateBlockResponse = await client.blocks.CreateBlock(request)
    return response.block


async def edit(client: Any, label: str = "human", **verb: Any) -> pb.EditBlockResponse:
    """Edits a block of the agent."""
    request = pb.EditBlockRequest(agent_id=AGENT, label=label, **verb)
    response: pb.EditBlockResponse = await client.blocks.EditBlock(request)
    return response


async def patch(client: Any, text: str, label: str = "human", **more: Any) -> pb.EditBlockResponse:
    return await edit(client, label, patch=pb.PatchEdit(patch=text), **more)


async def versions(client: Any, block_id: str) -> list[pb.BlockVersion]:
    listed = await client.blocks.ListBlockVersions(pb.ListBlockVersionsRequest(block_id=block_id))
    return list(listed.versions)
