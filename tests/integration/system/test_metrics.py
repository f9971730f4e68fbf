"""Metrics of turns, read through the metrics port."""

from __future__ import annotations

import asyncio
import re

import pytest

from command_line import run_command
from doubles.script import Call, Fault, Reply, say
from scraping import Scrape, scrape
from strata.shared.metric_names import (
    DATABASE_CONNECTIONS,
    DATABASE_POOL_SIZE,
    DATABASE_WAIT_SECONDS,
    METRICS,
    MODEL_CALL_SECONDS,
    MODEL_CALLS,
    MODEL_FIRST_EVENT_SECONDS,
    MODEL_RETRIES,
    MODEL_TOKENS,
    RPC_IN_FLIGHT,
    RPC_REQUESTS,
    RPC_SECONDS,
    RUN_SECONDS,
    RUN_WAIT_SECONDS,
    RUNS_ACTIVE,
    RUNS_FINISHED,
    SEARCH_SECONDS,
    TOOL_CALL_SECONDS,
    TOOL_CALLS,
)
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = {"provider": "openai", "model": "openai/test-model"}
_ID = re.compile(
    r"\b[a-z]+-[0-9a-zA-Z]{16,}\b|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-|[0-9a-f]{16}", re.IGNORECASE
)


async def end_of_runs(system: System) -> Scrape:
    """Returns the metrics once no run is active: a run is counted after its last event."""
    async with asyncio.timeout(10):
        while (read := await scrape(system.metrics_url)).total(RUNS_ACTIVE):
            await asyncio.sleep(0.02)
    return read


async def test_a_turn_with_tool_calls_is_measured(system: System) -> None:
    agent = await system.make_agent()
    before = await end_of_runs(system)
    system.model.script(
        Reply(
            calls=(
                Call("memory_insert", {"label": "human", "new_str": "Likes rowing."}),
                Call("conversation_search", {"query": "rowing"}),
            ),
            usage=(1000, 50),
            cached=400,
        ),
        Reply("Noted.", usage=(1100, 7)),
    )
    await system.send(agent, "I like rowing.")
    after = await end_of_runs(system)

    def added(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert added(RUNS_FINISHED, kind="foreground", stop_reason="end_turn") == 1
    assert added(RUNS_FINISHED) == 1
    assert added(f"{RUN_SECONDS}_count", kind="foreground") == 1
    assert added(f"{RUN_WAIT_SECONDS}_count", kind="foreground") == 1

    assert added(MODEL_CALLS, outcome="ok", **MODEL) == added(MODEL_CALLS) == 2
    assert added(f"{MODEL_CALL_SECONDS}_count", **MODEL) == 2
    assert added(f"{MODEL_FIRST_EVENT_SECONDS}_count", **MODEL) == 2
    assert added(MODEL_TOKENS, kind="prompt", **MODEL) == 2100
    assert added(MODEL_TOKENS, kind="completion", **MODEL) == 57
    assert added(MODEL_TOKENS, kind="cached_input", **MODEL) == 400

    assert added(TOOL_CALLS, tool="memory_insert", status="OK") == 1
    assert added(TOOL_CALLS, tool="conversation_search", status="OK") == 1
    assert added(TOOL_CALLS) == added(f"{TOOL_CALL_SECONDS}_count") == 2
    assert added(f"{SEARCH_SECONDS}_count", collection="messages") == 1

    run_method = "/strata.api.agent_loop.v1.TurnService/ExecuteRun"
    assert added(RPC_REQUESTS, method=run_method, code="OK") == 1
    assert added(f"{RPC_SECONDS}_count", method=run_method) == 1
    assert added(RPC_REQUESTS, method="/strata.api.recall.v1.WindowService/CommitStep") == 2
    assert after.total(RPC_IN_FLIGHT, method=run_method) == 0

    for service in ("gateway", "agent_loop", "core_memory", "recall"):
        assert added(f"{DATABASE_WAIT_SECONDS}_count", service=service, role="service") > 0
        connections = after.total(DATABASE_CONNECTIONS, service=service, role="service")
        most = after.total(DATABASE_POOL_SIZE, service=service, role="service")
        assert 0 < connections <= most


async def test_an_active_run_and_a_repeated_request_are_seen(system: System) -> None:
    agent = await system.make_agent()
    before, go_on = await end_of_runs(system), asyncio.Event()
    system.model.script(
        Fault(503, "Overloaded.", headers={"retry-after": "0.01"}),
        Reply("A long answer, in pieces.", piece=1, held=go_on),
    )
    stream = system.begin(agent, "Hello.")
    await stream.until("text_delta")
    during = await scrape(system.metrics_url)
    assert during.total(RUNS_ACTIVE, kind="foreground") == 1
    go_on.set()
    await stream.rest()
    after = await end_of_runs(system)
    assert after.total(MODEL_RETRIES, **MODEL) - before.total(MODEL_RETRIES, **MODEL) == 1
    assert after.total(MODEL_CALLS, outcome="ok") - before.total(MODEL_CALLS, outcome="ok") == 1


async def test_no_label_contains_an_id(system: System) -> None:
    agents = [await system.make_agent() for _ in range(3)]
    known = {system.project_id}
    for agent in agents:
        system.model.script(
            Reply(
                calls=(
                    Call("archival_memory_insert", {"content": "They row."}),
                    Call("archival_memory_search", {"query": "rowing"}),
                    Call(f"tool-{agent.id}", {}),
                )
            ),
            say("Noted."),
        )
        ran = await system.send(agent, "I row.")
        known |= {agent.id, agent.default_conversation_id, ran.run_id}
    read = await end_of_runs(system)
    names = {sample.name for sample in read.samples}
    assert {RUNS_FINISHED, TOOL_CALLS, MODEL_CALLS, RPC_REQUESTS} <= names
    assert all(_ID.search(identifier) for identifier in known), known
    values = {value for sample in read.samples for value in sample.labels.values()}
    assert [value for value in values if _ID.search(value) or value in known] == []


async def test_every_served_metric_is_defined(system: System) -> None:
    read = await scrape(system.metrics_url)
    served = {name for name in read.families if not name.startswith("process_")}
    assert len(served) > 10
    assert served <= {name.removesuffix("_total") for name in METRICS}


async def test_the_status_command_causes_no_failed_call(system: System) -> None:
    # The worker of deletions makes these calls at any time, for agents that earlier tests deleted.
    of_deletions = {
        f"/strata.api.agent_loop.v1.AgentService/{n}" for n in ("GetAgent", "DeleteAgent")
    }

    def failed(read: Scrape) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["method"], sample.labels["code"]): sample.value
            for sample in read.matching(RPC_REQUESTS)
            if sample.labels["code"] != "OK" and sample.labels["method"] not in of_deletions
        }

    before = await scrape(system.metrics_url)
    done = await run_command("status", "--address", system.address, "--api-key", system.key)
    assert done.code == 0, done
    after = await scrape(system.metrics_url)
    assert after.total(RPC_REQUESTS) > before.total(RPC_REQUESTS) + 5
    assert failed(after) == failed(before)
