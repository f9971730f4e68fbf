"""Tokens of model calls that belong to no run, in the usage of their project."""

from __future__ import annotations

import asyncio

import pytest

from doubles.script import Reply, say
from polling import eventually
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import model_service_pb2 as model_pb
from strata.api.gateway.v1 import admin_service_pb2 as admin_pb
from strata.protocol.errors import NotFoundError
from strata.shared.call_usage import USAGE_KEY
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVICT_ALL = agent_pb.CompactionSettings(mode="all")


async def talked(system: System) -> agent_pb.Agent:
    """Returns an agent with two turns of ten tokens each."""
    agent = await system.make_agent()
    for number in range(2):
        system.model.script(Reply(text=f"Answer {number}.", usage=(7, 3)))
        await system.send(agent, f"Question {number}.")
    return agent


def compacting(agent: agent_pb.Agent) -> agent_pb.CompactConversationRequest:
    return agent_pb.CompactConversationRequest(agent_id=agent.id, compaction=EVICT_ALL)


async def counts(system: System, agent_id: str = "") -> tuple[int, int, int, int]:
    """Returns runs, model calls, and tokens sent and written."""
    usage = await system.admin.GetUsage(admin_pb.GetUsageRequest(agent_id=agent_id))
    return usage.run_count, usage.step_count, usage.prompt_tokens, usage.completion_tokens


async def test_compaction_on_request_counts_in_the_usage_of_project_and_agent(
    system: System,
) -> None:
    agent, other = await talked(system), await talked(system)
    before = await counts(system)
    system.model.script(Reply(text="- Two questions.", usage=(100, 20)))
    call = system.agents.CompactConversation(compacting(agent))
    assert (await call).HasField("summary")

    assert await counts(system, agent.id) == (2, 3, 2 * 7 + 100, 2 * 3 + 20)
    assert await counts(system, other.id) == (2, 2, 2 * 7, 2 * 3)
    in_project = await counts(system)
    assert in_project == tuple(
        count + more for count, more in zip(before, (0, 1, 100, 20), strict=True)
    )
    series = await system.admin.GetUsageSeries(admin_pb.GetUsageSeriesRequest(agent_id=agent.id))
    assert series.total.prompt_tokens == 2 * 7 + 100
    assert sum(bucket.usage.completion_tokens for bucket in series.buckets) == 2 * 3 + 20
    operator = system.client(system.organization_key)
    try:
        listed = await operator.admin.ListProjectUsage(admin_pb.ListProjectUsageRequest())
    finally:
        await operator.channel.close()
    assert in_project in [
        (
            project.usage.run_count,
            project.usage.step_count,
            project.usage.prompt_tokens,
            project.usage.completion_tokens,
        )
        for project in listed.projects
    ]
    assert USAGE_KEY not in dict(await call.trailing_metadata())


async def test_probe_of_a_model_counts_in_the_usage_of_the_project(system: System) -> None:
    before = await counts(system)
    system.model.script(Reply(text="OK", usage=(10, 1)), Reply(text="Ready.", usage=(30, 2)))
    await system.models.ProbeModel(model_pb.ProbeModelRequest(handle="openai/test-model"))
    assert await counts(system) == tuple(
        count + more for count, more in zip(before, (0, 2, 40, 3), strict=True)
    )


async def test_compaction_that_calls_no_model_counts_nothing(system: System) -> None:
    agent = await talked(system)
    system.model.script(say("- Two questions."))
    await system.agents.CompactConversation(compacting(agent))
    before = await counts(system, agent.id)
    again = await system.agents.CompactConversation(compacting(agent))
    assert not again.HasField("summary")
    assert await counts(system, agent.id) == before


async def test_compaction_that_fails_after_its_model_call_counts(system: System) -> None:
    agent = await talked(system)
    go_on = asyncio.Event()
    system.model.script(Reply(text="- Two questions. " * 9, usage=(100, 20), held=go_on))
    asked = len(system.model.requests)
    compaction = asyncio.ensure_future(system.agents.CompactConversation(compacting(agent)))
    await eventually(lambda: len(system.model.requests) > asked)
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    go_on.set()
    with pytest.raises(NotFoundError):
        await compaction
    assert await counts(system, agent.id) == (2, 3, 2 * 7 + 100, 2 * 3 + 20)
