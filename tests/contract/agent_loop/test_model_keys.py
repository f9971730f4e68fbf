"""The contract of `ModelKeyStore`, on PostgreSQL, and what is loaded with an agent."""

from __future__ import annotations

import asyncio

import pytest

from callers import as_project
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.model.keys import SealedKey, in_force
from strata.agent_loop.store import PostgresAgentStore, PostgresModelKeys
from strata.protocol.errors import NotFoundError, Reason
from strata.shared import context
from strata.shared.agent_types import AgentType
from strata.shared.db import Database, sql
from strata.shared.idempotency.keys import RequestKey
from strata.shared.ids import new_id


@pytest.fixture
def keys(database: Database) -> PostgresModelKeys:
    return PostgresModelKeys(database)


@pytest.fixture
def agents(database: Database) -> PostgresAgentStore:
    return PostgresAgentStore(database)


async def active(agents: PostgresAgentStore, name: str) -> Agent:
    made = await agents.insert(Agent(new_id("agent"), name, AgentType.LETTA_V1, ""), RequestKey())
    return await agents.activate(made.agent.id)


async def loaded(agents: PostgresAgentStore, agent: Agent) -> set[SealedKey]:
    return set((await agents.load(agent.id, agent.default_conversation_id)).model_keys)


async def test_an_agent_is_loaded_with_its_keys_and_its_projects(
    keys: PostgresModelKeys, agents: PostgresAgentStore
) -> None:
    ann, bob = await active(agents, "Ann"), await active(agents, "Bob")
    shared, own = SealedKey("openai", "", b"\x00\xff"), SealedKey("openai", ann.id, b"own")
    assert await loaded(agents, ann) == set()
    await keys.put(shared)
    await keys.put(own)

    assert await loaded(agents, ann) == {shared, own}
    assert await loaded(agents, bob) == {shared}
    assert await keys.of_project() == [shared]
    assert in_force([own, shared]) == in_force([shared, own]) == {"openai": own}


async def test_a_new_key_replaces_the_previous_one(keys: PostgresModelKeys) -> None:
    for sealed in (b"one", b"two"):
        await keys.put(SealedKey("openai", "", sealed))
    assert await keys.of_project() == [SealedKey("openai", "", b"two")]
    assert await keys.delete("openai", "") is True
    assert await keys.delete("openai", "") is False
    assert await keys.of_project() == []


async def test_only_an_active_agent_can_have_keys(
    keys: PostgresModelKeys, agents: PostgresAgentStore
) -> None:
    made = await agents.insert(Agent(new_id("agent"), "New", AgentType.LETTA_V1, ""), RequestKey())
    for agent_id in (made.agent.id, new_id("agent")):
        with pytest.raises(NotFoundError) as caught:
            await keys.put(SealedKey("openai", agent_id, b"x"))
        assert caught.value.reason is Reason.AGENT_NOT_FOUND
        with pytest.raises(NotFoundError):
            await keys.delete("openai", agent_id)


async def test_a_key_never_outlives_its_agent(
    keys: PostgresModelKeys, agents: PostgresAgentStore, database: Database
) -> None:
    for number in range(10):
        agent = await active(agents, f"Agent {number}")
        outcomes = await asyncio.gather(
            keys.put(SealedKey("openai", agent.id, b"x")),
            agents.remove([agent.id]),
            return_exceptions=True,
        )
        for outcome in outcomes:
            assert outcome is None or isinstance(outcome, NotFoundError), outcome
    async with database.transaction(read_only=True) as connection:
        left = await connection.execute(sql("SELECT count(*) FROM agent_loop.model_keys"))
        assert left.scalar_one() == 0


async def test_other_project_cannot_use_the_key(
    keys: PostgresModelKeys, agents: PostgresAgentStore, database: Database
) -> None:
    agent = await active(agents, "Ann")
    await keys.put(SealedKey("openai", "", b"x"))
    with context.use(as_project()):
        assert await keys.of_project() == []
        assert await keys.delete("openai", "") is False
        with pytest.raises(NotFoundError):
            await keys.put(SealedKey("openai", agent.id, b"y"))
        # Row-level security applies without the condition, too.
        async with database.transaction(read_only=True) as connection:
            seen = await connection.execute(sql("SELECT count(*) FROM agent_loop.model_keys"))
            assert seen.scalar_one() == 0


async def test_loading_an_agent_with_keys_is_one_statement(
    keys: PostgresModelKeys, agents: PostgresAgentStore, database: Database
) -> None:
    agent = await active(agents, "Ann")
    await keys.put(SealedKey("openai", agent.id, b"x"))
    before = database.statistics.statements
    assert await loaded(agents, agent)
    assert database.statistics.statements == before + 1
