"""The pages of runs: lists, timeline, stored events, cancel."""

from __future__ import annotations

import asyncio
import re

import pytest

from console_client import HOSTILE, ConsoleClient, shown
from doubles.script import Call, Fault, Reply, call, say
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1.run_service_pb2 import ExplainRunResponse, Run, RunPart, RunSpan
from strata.gateway.console.views.runs import part_bars, span_bars
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def ran_with_tool(system: System, text: str = "Found.") -> tuple[agent_pb.Agent, str]:
    """Creates an agent and runs a turn with a tool call."""
    agent = await system.make_agent()
    system.model.script(call("archival_memory_search", {"query": text}), say(text))
    return agent, (await system.send(agent, text)).run_id


async def test_the_timeline_shows_the_parts_of_a_run(system: System, ann: ConsoleClient) -> None:
    agent, run_id = await ran_with_tool(system)
    page = (await ann.get(f"/runs/{run_id}")).text
    explained = await system.runs.ExplainRun(run_pb.ExplainRunRequest(run_id=run_id))
    kinds = re.findall(r"<td><strong>(\w+)</strong>", page)
    assert kinds == [span.kind for span in explained.spans]
    assert {"model", "tool"} <= set(kinds)
    assert page.count('class="bars" viewBox') == len(explained.spans)
    assert "archival_memory_search" in page
    assert f"{explained.run.usage.prompt_tokens:,} in" in page
    assert agent.name in page
    assert "hx-trigger" not in page, "a finished run is not polled"


async def test_lists_are_filtered_by_agent_and_state(system: System, ann: ConsoleClient) -> None:
    agent, run_id = await ran_with_tool(system)
    system.model.script(Fault(400, HOSTILE, "invalid_request_error"))
    failed = (await system.send(agent, "Again.")).run_id
    everywhere = (await ann.get("/runs")).text
    assert (run_id in everywhere, failed in everywhere) == (True, True)
    path = f"/agents/{agent.id}/runs"
    of_agent = (await ann.get(path)).text
    assert set(re.findall(r"/runs/(run-[\w-]+)", of_agent)) == {run_id, failed}
    of_state = (await ann.get(path, params={"state": "failed"})).text
    assert (run_id in of_state, failed in of_state) == (False, True)
    assert "No run is in this state" in (await ann.get(path, params={"state": "open"})).text
    assert "<script>alert" not in everywhere + of_agent + of_state


async def test_the_list_names_existing_agents_only(system: System, ann: ConsoleClient) -> None:
    agent, deleted = await system.make_agent(), await system.make_agent()
    for runner in (agent, deleted):
        system.model.script(say("Hello."))
        await system.send(runner, "Hello.")
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=deleted.id))
    page = (await ann.get("/runs")).text
    assert shown(agent.name) in page
    assert shown(deleted.name) not in page


async def test_errors_and_events_of_a_failed_run_are_escaped(
    system: System, ann: ConsoleClient
) -> None:
    agent = await system.make_agent(name="<b onclick=alert(1)>failing")
    search = Call("archival_memory_search", {"query": HOSTILE})
    system.model.script(
        Reply(
            text=HOSTILE,
            reasoning=HOSTILE,
            calls=[search],
        ),
        Fault(400, HOSTILE, "invalid_request_error"),
    )
    run_id = (await system.send(agent, HOSTILE)).run_id
    for path in (f"/runs/{run_id}", f"/runs/{run_id}/events", "/runs"):
        page = (await ann.get(path)).text
        assert shown("<script>alert(1)</script>") in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "<b onclick" not in page
        assert "\u202e" not in page
    run = await system.run(run_id)
    assert run.error.reason in (await ann.get(f"/runs/{run_id}")).text


async def test_stored_events_are_listed_in_order_and_by_page(
    system: System, ann: ConsoleClient
) -> None:
    _, run_id = await ran_with_tool(system)
    stored = (await system.follow(run_id)).stored_events
    page = (await ann.get(f"/runs/{run_id}/events")).text
    numbers = [int(number) for number in re.findall(r'muted mono">(\d+)<', page)]
    # Calls that are shown as text are not shortened here, so no sequence is missing.
    assert numbers == list(range(1, stored[-1].sequence + 1))
    assert "Run ended" in page
    assert "Tool archival_memory_search ended" in page
    later = (await ann.get(f"/runs/{run_id}/events", params={"after": str(numbers[-2])})).text
    assert re.findall(r'muted mono">(\d+)<', later) == [str(numbers[-1])]
    for bad in ("x", "-1", "9" * 30):
        refused = await ann.get(f"/runs/{run_id}/events", params={"after": bad})
        assert (refused.status_code, "after" in refused.text) == (400, True)


async def test_an_active_run_is_followed_and_cancelled(system: System, ann: ConsoleClient) -> None:
    agent = await system.make_agent()
    release = asyncio.Event()
    system.model.script(Reply(text="A long answer." * 20, held=release))
    stream = system.begin(agent, "Think.")
    try:
        await asyncio.wait_for(system.model.received.wait(), 20)
        run_id = (await system.runs.ListRuns(run_pb.ListRunsRequest(agent_id=agent.id))).runs[0].id
        page = (await ann.get(f"/runs/{run_id}")).text
        assert "Cancel the run" in page
        assert 'hx-trigger="load delay:2s"' in page
        part = (await ann.get(f"/runs/{run_id}", headers={"hx-request": "true"})).text
        assert part.strip().startswith('<div id="progress"')
        # The page of events does not wait for the end of the run.
        events = await asyncio.wait_for(ann.get(f"/runs/{run_id}/events"), 20)
        assert "so far" in events.text
        response = await ann.post(f"/runs/{run_id}/cancel")
        assert response.headers["location"] == f"/console/runs/{run_id}"
        await stream.rest()
        assert (await system.run(run_id)).state == run_pb.RUN_STATE_CANCELLED
    finally:
        release.set()


async def test_unknown_run_is_explained(ann: ConsoleClient) -> None:
    response = await ann.get("/runs/run-00000000-0000-7000-8000-000000000000")
    assert (response.status_code, "RUN_NOT_FOUND" in response.text) == (404, True)


async def test_bars_of_a_timeline_share_one_scale() -> None:
    run = Run()
    run.create_time.FromMilliseconds(1_000_000)
    spans = [RunSpan(kind="wait", duration_ms=500), RunSpan(kind="model", duration_ms=1500)]
    spans[0].start_time.FromMilliseconds(1_000_000)
    spans[1].start_time.FromMilliseconds(1_000_500)
    bars = span_bars(ExplainRunResponse(run=run, spans=spans, total_ms=2000))
    assert [(bar.start, bar.width) for bar in bars] == [(0.0, 250.0), (250.0, 750.0)]
    parts = [RunPart(kind="model", share_ms=30), RunPart(kind="tool", share_ms=10)]
    assert [(bar.start, bar.width) for bar in part_bars(parts)] == [(0.0, 750.0), (750.0, 250.0)]
    assert part_bars([RunPart(kind="model")])[0].width == 0.0
    assert span_bars(ExplainRunResponse(run=run)) == []
