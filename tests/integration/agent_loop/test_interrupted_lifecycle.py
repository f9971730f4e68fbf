"""Interrupted creations and deletions: later calls finish or remove them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from chat_messages import roles
from inner_services import InnerServices
from sql_queries import execute
from strata.agent_loop.convert.agents import create_from_proto
from strata.agent_loop.domain.agent.agents import AgentState
from strata.agent_loop.store import PostgresAgentStore
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import unfinished_agent_service_pb2 as unfinished_pb
from strata.api.agent_loop.v1 import unfinished_agent_service_pb2_grpc as unfinished_grpc
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import AlreadyExistsError, NotFoundError
from strata.shared.db import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def store(services: InnerServices) -> AsyncIterator[PostgresAgentStore]:
    database = Database(services.urls["agent_loop"].service_url)
    yield PostgresAgentStore(database)
    await database.close()


async def age(services: InnerServices, agent_id: str) -> None:
    await execute(
        services.urls["agent_loop"].admin_url,
        "UPDATE agent_loop.agents SET create_time = now() - interval '4 minutes' WHERE id = $1",
        agent_id,
    )


async def test_same_request_finishes_a_creation_that_stopped(
    services: InnerServices, store: PostgresAgentStore
) -> None:
    request = pb.CreateAgentRequest(request_id="once", name="Bo")
    command = create_from_proto(request)
    await store.insert(command.agent, command.request)
    with pytest.raises(NotFoundError):
        await services.agents.GetAgent(pb.GetAgentRequest(name="Bo"))

    made = await services.agents.CreateAgent(request)

    assert made.agent.id == command.agent.id
    assert [block.label for block in made.blocks] == ["human", "persona"]
    assert roles((await services.window(made.agent)).messages) == ["system"]


async def test_name_of_an_abandoned_creation_is_free_after_a_while(
    services: InnerServices, store: PostgresAgentStore
) -> None:
    command = create_from_proto(pb.CreateAgentRequest(name="Bo"))
    await store.insert(command.agent, command.request)
    with pytest.raises(AlreadyExistsError):
        await services.make_agent(name="Bo")

    await age(services, command.agent.id)
    made = await services.make_agent(name="Bo")

    assert made.id != command.agent.id
    with pytest.raises(NotFoundError):
        await store.get(command.agent.id)


async def test_interrupted_deletion_is_continued(
    services: InnerServices, store: PostgresAgentStore
) -> None:
    first = await services.make_agent(name="Bo")
    await store.begin_deletion(first.id)
    with pytest.raises(NotFoundError):
        await services.agents.GetAgent(pb.GetAgentRequest(agent_id=first.id))
    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=first.id))
    with pytest.raises(NotFoundError):
        await services.window(first)

    second = await services.make_agent(name="Bo")
    await store.begin_deletion(second.id)
    await services.make_agent(name="Bo")
    with pytest.raises(NotFoundError):
        await store.get(second.id)


async def test_a_creation_that_is_not_continued_is_rolled_back(
    services: InnerServices, store: PostgresAgentStore
) -> None:
    async def label_count() -> int:
        blocks = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(page_size=100))
        return len(blocks.blocks)

    before = await label_count()
    left, continued = [
        await services.make_agent(name=name, request_id=f"create-{name}") for name in ("Bo", "Cy")
    ]
    url = services.urls["agent_loop"].admin_url
    for agent in (left, continued):
        await execute(
            url, "UPDATE agent_loop.agents SET state = 'creating' WHERE id = $1", agent.id
        )
        await age(services, agent.id)
    # Continues the creation of the second agent, up to its end.
    await services.make_agent(name="Cy", request_id="create-Cy")
    await execute(
        url, "UPDATE agent_loop.agents SET state = 'creating' WHERE id = $1", continued.id
    )
    stub = unfinished_grpc.UnfinishedAgentServiceStub(services.channel("agent_loop"))
    for _ in range(2):
        await stub.RemoveUnfinishedAgents(unfinished_pb.RemoveUnfinishedAgentsRequest())

    with pytest.raises(NotFoundError):
        await store.get(left.id)
    assert (await store.get(continued.id)).state is AgentState.CREATING
    assert await label_count() == before + 2
