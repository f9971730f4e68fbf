"""What a turn costs, counted (architecture §4)."""

from __future__ import annotations

import json

import asyncpg
import pytest

from doubles.script import Call, Reply, say
from metering import Cost
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from world import Ran, World, roles

pytestmark = pytest.mark.asyncio(loop_scope="session")

SQL_PLAIN = 15
SQL_PER_TOOL_STEP = 10
COMMITS_PER_STEP = 3
COMMITS_OF_THE_RUN = 1
"""The gateway's own: the run and its lease."""

_COPY = """
    INSERT INTO recall.messages (
        project_id, conversation_id, sequence, id, agent_id, role, parts, name, run_id, step_id,
        step, group_id, model, usage, provenance, pinned, client_message_id, create_time,
        search_words, search_pairs, search_language)
    SELECT project_id, conversation_id, message_count + n,
           'message-' || gen_random_uuid(), agent_id,
           CASE n % 2 WHEN 0 THEN 'user' ELSE 'assistant' END,
           jsonb_build_array(jsonb_build_object('type', 'text', 'text', 'Line number ' || n)),
           '', '', '', 0, '', '', NULL, '{}', false, '',
           create_time + n * interval '1 microsecond',
           'Line number ' || n, '', search_language
      FROM recall.windows, generate_series(0, $2::integer - 1) n
     WHERE conversation_id = $1
"""
_COUNT = "UPDATE recall.windows SET message_count = message_count + $2 WHERE conversation_id = $1"


def internal_calls(steps: int, *, memory_changed: bool) -> int:
    return 4 + 2 * steps + memory_changed


async def grow(world: World, agent: agent_pb.Agent, count: int) -> None:
    """Gives a conversation a past that is no longer in its window."""
    connection = await asyncpg.connect(world.urls["recall"].admin_url)
    try:
        await connection.execute(_COPY, agent.default_conversation_id, count)
        await connection.execute(_COUNT, agent.default_conversation_id, count)
        await connection.execute("ANALYZE recall.messages")
    finally:
        await connection.close()


async def plain_turn(world: World, agent: agent_pb.Agent) -> Cost:
    world.model.script(say("Good to hear."))
    async with world.measure() as cost:
        ran = await world.send(agent, "I am well.")
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    return cost


async def tool_turn(world: World, agent: agent_pb.Agent, fact: str) -> tuple[Cost, Ran]:
    """Three calls in one reply, one of which changes the memory in view."""
    world.model.script(
        Reply(
            calls=(
                Call("memory_insert", {"label": "human", "new_str": f"Likes {fact}."}),
                Call("archival_memory_insert", {"content": f"They told me about {fact}."}),
                Call("conversation_search", {"query": fact}),
            )
        ),
        say("Noted."),
    )
    async with world.measure() as cost:
        ran = await world.send(agent, f"I like {fact}.")
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert roles(ran.messages) == ["assistant", "tool", "assistant"]
    returns = [json.loads(part.tool_return.content) for part in ran.messages[1].parts]
    assert [each["status"] for each in returns] == ["OK", "OK", "OK"]
    return cost, ran


async def test_plain_turn_is_within_budget(world: World) -> None:
    agent = await world.make_agent()
    await plain_turn(world, agent)

    cost = await plain_turn(world, agent)

    assert cost.sql <= SQL_PLAIN, cost
    assert cost.internal.total() <= internal_calls(1, memory_changed=False), cost
    assert cost.writes <= COMMITS_PER_STEP + COMMITS_OF_THE_RUN, cost
    print("PLAIN", cost)


async def test_turn_with_three_calls_in_one_reply_is_within_budget(world: World) -> None:
    agent = await world.make_agent()
    await tool_turn(world, agent, "rowing")

    cost, _ = await tool_turn(world, agent, "sailing")
    print("TOOL", cost)

    assert cost.sql <= SQL_PLAIN + SQL_PER_TOOL_STEP, cost
    assert cost.internal.total() <= internal_calls(2, memory_changed=True), cost
    assert cost.writes <= 2 * COMMITS_PER_STEP + COMMITS_OF_THE_RUN, cost
