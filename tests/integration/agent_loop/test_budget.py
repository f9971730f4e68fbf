"""What a turn costs: internal calls, statements and commits, whatever the age of the agent.

The budget is that of docs/architecture.md: 4 internal calls and 2 per step (1 more if memory
changed), 15 statements for a plain turn and 10 more per tool step, over all services but the
gateway. ExecuteRun counts as one of the calls; the tools' own calls to public services do not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from doubles.script import Call, Reply, say
from inner_services import InnerServices, open_inner_services
from metering import Cost as SqlCost
from metering import SqlMeter, wait_for_following_events
from nested_transactions import port_and_name
from strata.api.common.v1 import tool_pb2
from strata.shared.metric_names import RPC_REQUESTS
from strata.shared.telemetry import Counter

pytestmark = pytest.mark.asyncio(loop_scope="session")

INTERNAL = (
    "strata.api.agent_loop.v1.TurnService",
    "strata.api.core_memory.v1.ContextService",
    "strata.api.recall.v1.WindowService",
    "strata.api.tool_execution.v1.ExecutionService",
    "strata.api.archival.v1.AgentArchiveService",
)


@dataclass
class Cost:
    """The work done for calls, without background work such as indexing.

    Attributes:
        calls: Internal calls.
        statements: The statements that every turn costs.
        all: The statements with cached lookups, which occur in some turns.
    """

    calls: int
    statements: int
    all: int = field(compare=False)


@dataclass
class Meter:
    """Counts the work of all services but the gateway."""

    services: InnerServices
    sql: SqlMeter

    def calls(self) -> int:
        network = self.services.network
        assert network is not None
        calls = 0
        for sample in network.telemetry.samples():
            if sample.name == RPC_REQUESTS and isinstance(sample.metric, Counter):
                service = sample.labels["method"].lstrip("/").partition("/")[0]
                calls += int(sample.metric.value) if service in INTERNAL else 0
        return calls


@pytest.fixture(autouse=True)
def costs_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_following_events(monkeypatch)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def meter(databases: Any, vectors: Any) -> AsyncIterator[Meter]:
    sql = SqlMeter()
    with sql.on():
        async with open_inner_services(databases, vectors, "inprocess") as services:
            sql.databases |= {port_and_name(urls.service_url) for urls in services.urls.values()}
            yield Meter(services, sql)


async def cost_of(meter: Meter, agent: Any, *steps: Reply) -> Cost:
    meter.services.model.script(*steps)
    before, cost = meter.calls(), SqlCost()
    meter.sql.into(cost)
    try:
        ran = await meter.services.run(agent, "Hello.")
    finally:
        meter.sql.into(None)
    assert ran.finished.step_count == len(steps)
    return Cost(meter.calls() - before, len(cost.lasting), len(cost.statements))


async def test_plain_turn_keeps_within_the_budget_and_does_not_grow(meter: Meter) -> None:
    with meter.services.signed_in():
        agent = await meter.services.make_agent()
        await cost_of(meter, agent, say("Hi."))
        young = await cost_of(meter, agent, say("Hi."))
        for _ in range(15):
            await cost_of(meter, agent, say("Hi."))
        old = await cost_of(meter, agent, say("Hi."))

    assert young == old
    assert young.calls <= 6
    assert max(young.all, old.all) <= 15


async def test_turn_with_three_tool_calls_keeps_within_the_budget(meter: Meter) -> None:
    calls = (
        Call("conversation_search", {"query": "x"}),
        Call("conversation_search", {"query": "y"}),
        Call("conversation_search", {"query": "z"}),
    )
    edits = (
        Call("memory_insert", {"label": "human", "new_str": "Ada"}),
        *calls[:2],
    )
    with meter.services.signed_in():
        agent = await meter.services.make_agent()
        await cost_of(meter, agent, say("Hi."))
        plain = await cost_of(meter, agent, say("Hi."))
        searching = await cost_of(meter, agent, Reply(calls=calls), say("Found."))
        editing = await cost_of(meter, agent, Reply(calls=edits), say("Noted."))

    assert searching.calls <= 4 + 2 * 2
    assert editing.calls <= 4 + 2 * 2 + 1
    # Each search makes four queries: for the names of speakers, for messages that wait for the
    # index, for the messages that the index named, and for their neighbours.
    assert searching.statements - plain.statements <= 16
    assert editing.statements - plain.statements <= 15
    assert editing.all <= 15 + 12


async def test_rules_cost_no_call_and_no_statement(meter: Meter) -> None:
    """The history is part of what every turn reads; a heartbeat is stored with its step."""
    insert = Call("memory_insert", {"label": "human", "new_str": "Ada"})
    search = Call("conversation_search", {"query": "x"})
    rules = [
        {"type": tool_pb2.TOOL_RULE_TYPE_RUN_FIRST, "tool_name": "conversation_search"},
        {"type": tool_pb2.TOOL_RULE_TYPE_REQUIRED_BEFORE_EXIT, "tool_name": "memory_insert"},
    ]
    with meter.services.signed_in():
        plain = await meter.services.make_agent()
        ruled = await meter.services.make_agent(tool_rules=rules)
        costs = []
        for agent in (plain, ruled):
            await cost_of(meter, agent, Reply(calls=(search, insert)), say("Hi."))
            costs.append(await cost_of(meter, agent, Reply(calls=(search, insert)), say("Hi.")))
        held = await cost_of(
            meter, ruled, Reply(calls=(search,)), say("Bye."), Reply(calls=(insert,)), say("Hi.")
        )
        free = await cost_of(
            meter,
            plain,
            Reply(calls=(search,)),
            Reply(calls=(search,)),
            Reply(calls=(insert,)),
            say("Hi."),
        )

    assert costs[1].statements == costs[0].statements
    # Executed one after the other, each call of a reply is a separate stream.
    assert costs[1].calls == costs[0].calls + 1
    assert held.statements <= free.statements
    assert held.calls == free.calls - 1, "a step that is held runs no tool"
