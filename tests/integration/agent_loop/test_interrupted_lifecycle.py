"""Interrupted creations and deletions: later calls finish or remove them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from inner_services import World, roles
from strata.agent_loop.convert.agents import create_from_proto
from strata.agent_loop.store import PostgresAgentStore
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.protocol.errors import AlreadyExistsError, NotFoundError
from strata.shared.db import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def store(world: World) -> AsyncIterator[PostgresAgentStore]:
    database = Database(world.urls["agent_loop"].service_url)
    yield PostgresAgentStore(database)
    await database.close()


async def age(world: World, agent_id: str) -> None:
    connection = await asyncpg.connect(world.urls["agent_loop"].admin_url)
    try:
        await connection.execute(
            "UPDATE agent_loop.agents SET create_time = now() - interval '4 minutes' WHERE id = $1",
            agent_id,
        )
    finally:
        await connection.close()


async def test_same_request_finishes_a_creation_that_stopped(
    world: World, store: PostgresAgentStore
) -> None:
    request = pb.CreateAgentRequest(request_id="once", name="Bo")
    command = create_from_proto(request)
    await store.insert(command.agent, command.request)
    with pytest.raises(NotFoundError):
        await world.agents.GetAgent(pb.GetAgentRequest(name="Bo"))

    made = await world.agents.CreateAgent(request)

    assert made.agent.id == command.agent.id
    assert [block.label for block in made.blocks] == ["human", "persona"]
    assert roles((await world.window(made.agent)).messages) == ["system"]


async def test_name_of_an_abandoned_creation_is_free_after_a_while(
    world: World, store: PostgresAgentStore
) -> None:
    command = create_from_proto(pb.CreateAgentRequest(name="Bo"))
    await store.insert(command.agent, command.request)
    with pytest.raises(AlreadyExistsError):
        await world.make_agent(name="Bo")

    await age(world, command.agent.id)
    made = await world.make_agent(name="Bo")

    assert made.id != command.agent.id
    with pytest.raises(NotFoundError):
        await store.get(command.agent.id)


async def test_interrupted_deletion_is_continued(world: World, store: PostgresAgentStore) -> None:
    first = await world.make_agent(name="Bo")
    await store.begin_deletion(first.id)
    with pytest.raises(NotFoundError):
        await world.agents.GetAgent(pb.GetAgentRequest(agent_id=first.id))
    await world.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=first.id))
    with pytest.raises(NotFoundError):
        await world.window(first)

    second = await world.make_agent(name="Bo")
    await store.begin_deletion(second.id)
    await world.make_agent(name="Bo")
    with pytest.raises(NotFoundError):
        await store.get(second.id)
