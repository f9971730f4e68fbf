"""What a turn costs, counted (docs/architecture.md, invariant 6)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import asyncpg
import pytest

from chat_messages import roles
from doubles.script import Call, Reply, say
from metering import Cost, wait_for_following_events
from run_events import RunEvents
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SQL_PLAIN = 9
"""With BEGIN and COMMIT: eight, and the API key, which is read twice a minute."""
SQL_PER_TOOL_STEP = 14
"""Without the writes of events, whose number depends on the moments in which calls end."""
COMMITS_PER_STEP = 3
COMMITS_OF_THE_RUN = 2
"""The gateway's own: the run and its lease; its first step, which is shown before the reply."""
LOG_WRITES_OF_CALLS = 10
"""The first step; each of three calls that starts and ends, if none fall together; the second
step; and what is between.
"""

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


@pytest.fixture(autouse=True)
def costs_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_following_events(monkeypatch)


def internal_calls(steps: int, *, memory_changed: bool) -> int:
    return 4 + 2 * steps + memory_changed


async def grow(system: System, agent: agent_pb.Agent, count: int) -> None:
    """Inserts messages that are no longer in the window of a conversation."""
    connection = await asyncpg.connect(system.urls["recall"].admin_url)
    try:
        await connection.execute(_COPY, agent.default_conversation_id, count)
        await connection.execute(_COUNT, agent.default_conversation_id, count)
        await connection.execute("ANALYZE recall.messages")
    finally:
        await connection.close()


async def plain_turn(system: System, agent: agent_pb.Agent) -> Cost:
    """Runs a turn with a reply without calls, after the event of its step was stored."""
    shown = asyncio.Event()
    system.model.script(Reply("Good to hear, indeed.", piece=1, held=shown))
    async with system.measure() as cost:
        stream = system.begin(agent, "I am well.")
        await stream.until("step_started")
        shown.set()
        ran = await stream.rest()
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    return cost


async def tool_turn(system: System, agent: agent_pb.Agent, fact: str) -> tuple[Cost, RunEvents]:
    """Three calls in one reply, one of which changes the memory in view."""
    system.model.script(
        Reply(
            calls=(
                Call("memory_insert", {"label": "human", "new_str": f"Likes {fact}."}),
                Call("archival_memory_insert", {"content": f"They told me about {fact}."}),
                Call("conversation_search", {"query": fact}),
            )
        ),
        say("Noted."),
    )
    async with system.measure() as cost:
        ran = await system.send(agent, f"I like {fact}.")
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert roles(ran.messages) == ["assistant", "tool", "assistant"]
    returns = [json.loads(part.tool_return.content) for part in ran.messages[1].parts]
    assert [tool_return["status"] for tool_return in returns] == ["OK", "OK", "OK"]
    return cost, ran


def log_writes(cost: Cost) -> int:
    """Returns the number of event batches stored between the start and the end of the run."""
    return sum("SET last_sequence" in sql for _, sql in cost.statements)


async def test_plain_turn_is_within_budget(system: System) -> None:
    agent = await system.make_agent()
    await plain_turn(system, agent)

    cost = await plain_turn(system, agent)

    assert cost.lasting_sql <= SQL_PLAIN, cost
    assert cost.internal.total() <= internal_calls(1, memory_changed=False), cost
    assert cost.internal == Counter(
        ("ExecuteRun", "Compile", "BeginTurn", "ResolveTools", "GetAgentStats", "CommitStep")
    ), cost
    assert cost.writes <= COMMITS_PER_STEP + COMMITS_OF_THE_RUN, cost
    # An event with a sequence is stored before it is sent: one commit more than without that.
    assert cost.commits == Counter({"gateway": 3, "recall": 2}), cost


async def test_turn_with_three_calls_in_one_reply_is_within_budget(system: System) -> None:
    agent = await system.make_agent()
    await tool_turn(system, agent, "rowing")

    cost, _ = await tool_turn(system, agent, "sailing")

    assert cost.lasting_sql - log_writes(cost) <= SQL_PLAIN + SQL_PER_TOOL_STEP, cost
    assert cost.internal.total() <= internal_calls(2, memory_changed=True), cost
    assert cost.internal["CommitStep"] == 2, cost
    assert cost.internal["ExecuteTools"] == 1, cost
    assert cost.internal["Compile"] == 2, cost
    assert cost.commits["agent-loop"] == 1, f"the reply with its calls. {cost}"
    assert cost.commits["recall"] == 3, f"the inputs; two steps. {cost}"
    assert cost.commits["core-memory"] == cost.commits["archival"] == 1, cost
    assert cost.commits["gateway"] == 2 + log_writes(cost), cost


async def test_commits_of_a_tool_turn_are_within_budget(system: System) -> None:
    agent = await system.make_agent()
    await tool_turn(system, agent, "rowing")

    cost, _ = await tool_turn(system, agent, "sailing")

    # The writes and calls of a tool are not part of this budget.
    of_tools = cost.commits["core-memory"] + cost.commits["archival"]
    assert of_tools == 2, cost
    # The starts and ends of calls are events, which are stored as they arrive.
    shown = log_writes(cost)
    assert cost.writes - of_tools - shown <= 2 * COMMITS_PER_STEP + 1, cost
    assert shown <= LOG_WRITES_OF_CALLS, cost


async def test_a_turn_costs_the_same_at_10_and_at_10_000_messages(system: System) -> None:
    agent = await system.make_agent()
    await grow(system, agent, 10)
    # The first turns open connections and create the agent's archive.
    await tool_turn(system, agent, "reading")
    plain_young = await plain_turn(system, agent)
    tool_young, _ = await tool_turn(system, agent, "rowing")

    await grow(system, agent, 10_000)
    plain_old = await plain_turn(system, agent)
    tool_old, _ = await tool_turn(system, agent, "sailing")

    assert plain_old.shape() == plain_young.shape(), f"{plain_young}\n{plain_old}"
    # The number of events in one batch depends on milliseconds.
    assert without_log(tool_old) == without_log(tool_young), f"{tool_young}\n{tool_old}"


async def test_counts_in_the_prompt_are_correct_with_a_long_history(system: System) -> None:
    agent = await system.make_agent()
    await grow(system, agent, 10_000)

    await tool_turn(system, agent, "rowing")

    stored = await system.system_message(agent)
    assert "- 10000 previous messages between you and the user are stored in recall" in stored
    await plain_turn(system, agent)
    stored = await system.system_message(agent)
    assert "- 1 total memories you created are stored in archival memory" in stored
    assert len(system.model.requests[-1].body["messages"]) < 10


async def test_reading_the_prompt_does_not_depend_on_the_history(system: System) -> None:
    """The prompt contains the window, whatever the length of the log."""
    young, old = await system.make_agent(), await system.make_agent()
    await grow(system, old, 10_000)

    await plain_turn(system, young)
    await plain_turn(system, old)

    first, second = (request.body["messages"][1:] for request in system.model.requests)
    assert first == second


def without_log(cost: Cost) -> tuple[Counter[tuple[str, str]], Counter[str], Counter[str]]:
    statements, commits, calls = cost.shape()
    # The serving generation is cached for seconds, and read by the next search.
    left_out = ("SET last_sequence", ".serving_indexes")
    kept = Counter(
        {key: n for key, n in statements.items() if not any(part in key[1] for part in left_out)}
    )
    return kept, commits - Counter(gateway=log_writes(cost)), calls
