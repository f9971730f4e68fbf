"""RPCs of pages with lists and series."""

from __future__ import annotations

import pytest

from console_client import ConsoleClient
from doubles.script import say
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def calls_of(system: System, ann: ConsoleClient, path: str) -> dict[str, int]:
    """Loads a page, and returns the number of RPCs that it caused, by name of the method."""
    assert system.meter is not None
    async with system.meter.measure() as cost:
        page = await ann.get(path)
    assert page.status_code == 200, page.text
    return dict(cost.rpcs)


async def test_lists_do_not_make_a_call_for_each_agent(system: System, ann: ConsoleClient) -> None:
    system.model.respond(lambda _: say("Hello."))
    agents = [await system.make_agent(enable_sleeptime=number > 1) for number in range(4)]
    for agent in agents:
        await system.send(agent, "Hello.")
    calls = await calls_of(system, ann, "/runs")
    # The gateway forwards the call, and both count it.
    assert calls["ListAgents"] == 2
    # Memory agents may be running, each with one call.
    assert calls.get("GetAgent", 0) < len(agents)
    calls = await calls_of(system, ann, "/memory-agents")
    assert (calls["ListAgents"], calls["GetMemoryStatus"]) == (2, 1)


async def test_usage_of_any_period_costs_one_call(system: System, ann: ConsoleClient) -> None:
    for period in ("day", "quarter"):
        calls = await calls_of(system, ann, f"/usage?period={period}")
        assert calls["GetUsageSeries"] == 1
        assert "GetUsage" not in calls
