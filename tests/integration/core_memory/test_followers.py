"""An agent that follows another has its blocks, now and later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.ids import new_id

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("project")]


async def prepare(client: Any, agent: str, *labels: str, follows: str = "") -> list[str]:
    request = context_pb.PrepareAgentRequest(
        agent_id=agent,
        blocks=[pb.NewBlock(label=label, value=f"of {agent[-4:]}") for label in labels],
        follows_agent_id=follows,
    )
    return [block.label for block in (await client.context.PrepareAgent(request)).blocks]


async def labels(client: Any, agent: str) -> list[str]:
    response = await client.blocks.ListBlocks(pb.ListBlocksRequest(agent_id=agent))
    return sorted(block.label for block in response.blocks)


async def test_a_follower_gains_and_loses_blocks_with_the_followed_agent(
    client: Any,
) -> None:
    chat, memory = new_id("agent"), new_id("agent")
    await prepare(client, chat, "human", "persona")

    assert sorted(await prepare(client, memory, "memory_persona", follows=chat)) == [
        "human",
        "memory_persona",
        "persona",
    ]
    made = await client.blocks.CreateBlock(
        pb.CreateBlockRequest(block=pb.NewBlock(label="project"), agent_id=chat)
    )
    assert await labels(client, memory) == ["human", "memory_persona", "persona", "project"]
    await client.blocks.DetachBlock(pb.DetachBlockRequest(agent_id=chat, block_id=made.block.id))
    assert await labels(client, memory) == ["human", "memory_persona", "persona"]
    await client.blocks.AttachBlock(pb.AttachBlockRequest(agent_id=chat, block_id=made.block.id))
    assert "project" in await labels(client, memory)
    # A block that is attached only to the follower is not shared.
    assert await labels(client, chat) == ["human", "persona", "project"]


async def test_a_block_attached_while_another_agent_starts_to_follow_is_attached_to_both(
    client: Any,
) -> None:
    for _ in range(8):
        chat, memory = new_id("agent"), new_id("agent")
        await prepare(client, chat, "human")
        blocks = [
            (await client.blocks.CreateBlock(pb.CreateBlockRequest(block=pb.NewBlock(label=name))))
            for name in ("one", "two", "three")
        ]
        await asyncio.gather(
            prepare(client, memory, follows=chat),
            *(
                client.blocks.AttachBlock(
                    pb.AttachBlockRequest(agent_id=chat, block_id=made.block.id)
                )
                for made in blocks
            ),
        )
        assert await labels(client, memory) == ["human", "one", "three", "two"]


async def test_a_label_that_the_follower_has_stays_its_own(client: Any) -> None:
    chat, memory = new_id("agent"), new_id("agent")
    await prepare(client, chat, "human")
    await prepare(client, memory, "notes", follows=chat)
    own = await client.blocks.GetBlock(pb.GetBlockRequest(agent_id=memory, label="notes"))

    made = await client.blocks.CreateBlock(
        pb.CreateBlockRequest(block=pb.NewBlock(label="notes"), agent_id=chat)
    )

    after = await client.blocks.GetBlock(pb.GetBlockRequest(agent_id=memory, label="notes"))
    assert after.block.id == own.block.id != made.block.id


async def test_releasing_a_follower_keeps_the_blocks_of_the_followed_agent(client: Any) -> None:
    chat, memory = new_id("agent"), new_id("agent")
    await prepare(client, chat, "human", "persona")
    await prepare(client, memory, "memory_persona", follows=chat)

    await client.context.ReleaseAgent(context_pb.ReleaseAgentRequest(agent_id=memory))

    assert await labels(client, chat) == ["human", "persona"]


async def test_an_agent_cannot_follow_one_that_does_not_exist(client: Any) -> None:
    with pytest.raises(NotFoundError) as raised:
        await prepare(client, new_id("agent"), follows=new_id("agent"))
    assert raised.value.reason is Reason.AGENT_NOT_FOUND
