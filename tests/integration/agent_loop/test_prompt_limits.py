"""Agents that are made and changed so that system prompt, tools and memory fit their model."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from failures import exceeded_window
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    NotFoundError,
    Reason,
)
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

HANDLE = "test/test-model"
# This test does not know the token ratio that other tests have measured for the model: 36,000 bytes
# are too much for the smallest window at 12 bytes a token, and fit into one of 32,000 tokens at 2.
SERVICES = {
    "agent_loop": ["agents", "conversations"],
    "core_memory": ["blocks", "attachments", "prepared_agents", "block_versions"],
    "recall": ["messages", "windows"],
    "archival": ["agents"],
}


def model(window: int, handle: str = HANDLE, **more: Any) -> pb.ModelConfig:
    return pb.ModelConfig(handle=handle, context_window=window, **more)


async def stored(services: InnerServices, project: str) -> dict[str, int]:
    """Returns the number of rows of a project in each service."""
    counts = {}
    for service, tables in SERVICES.items():
        connection = await asyncpg.connect(services.urls[service].admin_url)
        try:
            for table in tables:
                query = f"SELECT count(*) FROM {service}.{table} WHERE project_id = $1"
                counts[f"{service}.{table}"] = await connection.fetchval(query, project)
        finally:
            await connection.close()
    return counts


async def limit_of(services: InnerServices, agent: pb.Agent) -> tuple[int | None, bool, int]:
    """Returns the limit of an agent, whether lines are numbered, and its revision."""
    connection = await asyncpg.connect(services.urls["core_memory"].admin_url)
    try:
        row = await connection.fetchrow(
            "SELECT prompt_limit_bytes, prompt_line_numbers, prompt_revision"
            " FROM core_memory.prepared_agents WHERE agent_id = $1",
            agent.id,
        )
    finally:
        await connection.close()
    assert row is not None
    return row[0], row[1], row[2]


async def get(services: InnerServices, agent: pb.Agent) -> pb.Agent:
    stored_agent: pb.Agent = (
        await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))
    ).agent
    return stored_agent


async def write(services: InnerServices, agent: pb.Agent, size: int) -> None:
    """Sets the size of the agent's block."""
    listed = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent.id))
    request = block_pb.UpdateBlockRequest(
        block_id=listed.blocks[0].id, value="x" * size, limit=200_000
    )
    await services.blocks.UpdateBlock(request)


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "x" * 60_000},
        {"blocks": [{"label": "human", "value": "x" * 36_000, "limit": 40_000}]},
        {"blocks": [{"label": f"part{n}", "value": "x" * 12_000} for n in range(3)]},
    ],
    ids=["system prompt", "a block", "several blocks"],
)
@pytest.mark.parametrize("request_id", ["", "request-1"])
async def test_an_agent_that_is_too_large_is_not_made(
    services: InnerServices, fields: dict[str, Any], request_id: str
) -> None:
    with services.signed_in() as project:
        wanted = pb.CreateAgentRequest(
            name="Bo", model=model(4_096), request_id=request_id, **fields
        )
        error = await exceeded_window(services.agents.CreateAgent(wanted))
        size, limit = int(error.metadata["size"]), int(error.metadata["limit"])
        assert size > limit > 0
        assert f"{size - limit} more than" in error.message
        assert set((await stored(services, project)).values()) == {0}
        smaller = pb.CreateAgentRequest(name="Bo", model=model(32_000), **fields)
        await services.agents.CreateAgent(smaller)


async def test_shared_blocks_count_when_an_agent_is_created(services: InnerServices) -> None:
    made = await services.blocks.CreateBlock(
        block_pb.CreateBlockRequest(
            block=block_pb.NewBlock(label="shared", value="x" * 36_000, limit=40_000)
        )
    )
    await exceeded_window(services.make_agent(model=model(4_096), block_ids=[made.block.id]))
    listed = await services.blocks.GetBlock(block_pb.GetBlockRequest(block_id=made.block.id))
    assert not listed.block.agent_ids
    await services.make_agent(model=model(32_000), block_ids=[made.block.id])


async def test_the_limit_follows_model_system_prompt_and_tools(services: InnerServices) -> None:
    agent = await services.make_agent(model=model(16_000))
    first, numbered, revision = await limit_of(services, agent)
    assert first is not None
    assert (numbered, revision) == (False, 1)

    await services.update_agent(agent, model=model(32_000))
    second, *_ = await limit_of(services, agent)
    assert second is not None
    assert second > first

    await services.update_agent(agent, system="Be kind. " * 100)
    third, *_ = await limit_of(services, agent)
    grown = len("Be kind. " * 100) - len(agent.system.encode())
    assert third == second - grown

    await services.update_agent(agent, tools=pb.NameList(names=[]))
    fourth, *_ = await limit_of(services, agent)
    assert fourth is not None
    assert fourth > third + 3_000, "six tools less"

    await services.update_agent(
        agent, model=model(32_000, "claude/test-model", max_output_tokens=8_000)
    )
    fifth, numbered, revision = await limit_of(services, agent)
    assert (fifth not in (None, fourth), numbered, revision) == (True, True, 5)

    await services.update_agent(agent, name=f"Cy {new_id('x')}", description="Another name.")
    assert await limit_of(services, agent) == (fifth, True, 5), "the change takes no space"


async def test_a_context_window_too_small_for_the_memory_is_refused(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(model=model(32_000))
    await write(services, agent, 36_000)
    before, limit = await get(services, agent), await limit_of(services, agent)
    assert limit[0] is not None
    error = await exceeded_window(services.update_agent(agent, model=model(4_096), name="Another"))
    assert error.metadata["agent_id"] == agent.id
    assert int(error.metadata["size"]) > 36_000 > int(error.metadata["limit"])
    assert f"takes {error.metadata['size']} bytes" in error.message
    assert (await get(services, agent), await limit_of(services, agent)) == (before, limit)

    await exceeded_window(
        services.update_agent(agent, model=model(32_000), system="x" * (limit[0] - 30_000))
    )
    assert (await get(services, agent), await limit_of(services, agent)) == (before, limit)
    await write(services, agent, 37_000)

    await write(services, agent, 1_000)
    changed = await services.update_agent(agent, model=model(4_096))
    assert changed.model.context_window == 4_096
    await exceeded_window(write(services, agent, 36_000))


@pytest.mark.parametrize("window", [8_192, 64_000])
async def test_a_change_that_is_refused_later_leaves_the_old_limit(
    services: InnerServices, window: int
) -> None:
    taken = await services.make_agent()
    agent = await services.make_agent(model=model(32_000))
    before, limit = await get(services, agent), await limit_of(services, agent)
    with pytest.raises(AlreadyExistsError):
        await services.update_agent(agent, model=model(window), name=taken.name)
    with pytest.raises(AbortedError):
        await services.update_agent(agent, model=model(window), expected_revision=7)
    with pytest.raises(NotFoundError):
        await services.update_agent(
            agent, model=model(window), tools=pb.NameList(names=["no_such"])
        )
    assert (await get(services, agent), await limit_of(services, agent)) == (before, limit)


async def test_a_repeated_change_gets_the_first_answer_and_keeps_the_newest_limit(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(model=model(32_000))
    smaller = {"model": model(8_192), "request_id": new_id("request")}
    first = await services.update_agent(agent, **smaller)
    await services.update_agent(agent, model=model(64_000))
    newest = await limit_of(services, agent)
    await write(services, agent, 80_000)
    assert await services.update_agent(agent, **smaller) == first
    assert await limit_of(services, agent) == newest
    with pytest.raises(AlreadyExistsError) as reused:
        await services.update_agent(agent, model=model(9_000), request_id=smaller["request_id"])
    assert reused.value.reason is Reason.REQUEST_ID_REUSED


async def test_an_unknown_agent_has_no_limit(services: InnerServices) -> None:
    with pytest.raises(NotFoundError) as caught:
        await services.update_agent(pb.Agent(id=new_id("agent")), model=model(8_192))
    assert caught.value.reason is Reason.AGENT_NOT_FOUND
