"""What is left of an agent that was deleted, in the databases of all services."""

from __future__ import annotations

import asyncpg
import pytest

from doubles.script import Call, Reply, say
from polling import eventually
from sql_queries import execute
from stored_words import tables_with
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def stored(system: System, word: str) -> set[str]:
    """Returns the tables of all services with a word, as "schema.table"."""
    tables = set()
    for service, urls in system.urls.items():
        schema = service.replace("-", "_")
        connection = await asyncpg.connect(urls.admin_url)
        try:
            tables |= {f"{schema}.{name}" for name in await tables_with(connection, schema, word)}
        finally:
            await connection.close()
    return tables


async def test_nothing_outlives_a_purged_and_deleted_agent(system: System) -> None:
    word = f"secret-{new_id('x')}"
    agent = await system.make_agent()
    await system.agents.UpdateAgent(
        agent_pb.UpdateAgentRequest(agent_id=agent.id, request_id=f"{word[7:]}-u", system=word)
    )
    await system.agents.CreateConversation(
        agent_pb.CreateConversationRequest(
            agent_id=agent.id, request_id=f"{word[7:]}-c", title=word
        )
    )
    system.model.script(
        Reply(
            calls=(
                Call("memory_insert", {"label": "human", "new_str": word}),
                Call("archival_memory_insert", {"content": word}),
            )
        ),
        say(f"Noted: {word}"),
    )
    await system.send(agent, f"Remember {word}.")
    assert await stored(system, word) >= {
        "agent_loop.agents",
        "agent_loop.conversations",
        "agent_loop.requests",
        "archival.passages",
        "core_memory.blocks",
        "core_memory.requests",
        "gateway.run_events",
        "recall.messages",
    }

    block = await system.block(agent, "human")
    await system.blocks.DeleteBlock(block_pb.DeleteBlockRequest(block_id=block.id, purge=True))
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))

    # Followers of a run that has just ended still read its events.
    assert await stored(system, word) == {"gateway.run_events"}
    url = system.urls["gateway"].admin_url
    await execute(url, "UPDATE gateway.runs SET finish_time = finish_time - interval '1 minute'")
    await execute(url, "UPDATE gateway.agent_deletions SET due_time = now()")

    async def is_erased() -> bool:
        return not await stored(system, word)

    await eventually(is_erased)
