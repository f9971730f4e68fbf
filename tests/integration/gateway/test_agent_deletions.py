"""Deletions of agents that were interrupted are finished; those that never began are dropped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
import pytest_asyncio

from integration.gateway.schedule_calls import Schedules
from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from sql_queries import execute, fetch_value
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.gateway.v1 import run_service_pb2
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.protocol.errors import InternalError, NotFoundError, Reason


@dataclass
class Case:
    """An agent with a schedule."""

    services: ScriptedServices
    gateway: Gateway
    agent_id: str
    schedule_id: str

    async def delete(self) -> grpc.StatusCode:
        """Deletes the agent; returns the status of the call."""
        stub = agent_grpc.AgentServiceStub(self.gateway.channel)
        request = agent_pb.DeleteAgentRequest(agent_id=self.agent_id)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.DeleteAgent(request, metadata=self.gateway.metadata, timeout=30)
        code: grpc.StatusCode = caught.value.code()
        return code

    async def schedule_state(self) -> schedule_pb.ScheduleState.ValueType:
        """Returns the state of the schedule."""
        return (await Schedules(self.gateway).get(self.schedule_id)).state

    async def make_due(self) -> None:
        """Makes the deletion due."""
        url = self.services.urls.admin_url
        await execute(url, "UPDATE gateway.agent_deletions SET due_time = now()")

    async def is_over(self) -> bool:
        """Whether no deletion is recorded any more."""
        url = self.services.urls.admin_url
        return not await fetch_value(url, "SELECT count(*) FROM gateway.agent_deletions")

    @property
    def call_count(self) -> int:
        """How often the agent loop was asked to delete."""
        return self.services.agents.calls.count("DeleteAgent")


@pytest_asyncio.fixture
async def case(services: ScriptedServices) -> Case:
    gateway, agent_id = await services.gateway(), services.new_agent()
    schedule = await Schedules(gateway).create(agent_id)
    return Case(services, gateway, agent_id, schedule.id)


async def test_a_deletion_that_was_interrupted_is_finished(case: Case) -> None:
    agents = case.services.agents

    def hide_and_fail() -> None:
        agents.agents.discard(case.agent_id)
        raise InternalError("The agent loop has died.")

    agents.on_delete = hide_and_fail
    assert await case.delete() is grpc.StatusCode.INTERNAL
    assert await case.schedule_state() == schedule_pb.SCHEDULE_STATE_ACTIVE
    # The next attempt fails as well, and stays recorded.
    await case.make_due()
    await eventually(lambda: case.call_count == 2)
    assert not await case.is_over()

    agents.on_delete = None
    await case.make_due()
    await eventually(case.is_over)
    assert case.call_count == 3
    assert await case.schedule_state() == schedule_pb.SCHEDULE_STATE_DISABLED


async def test_events_of_the_runs_of_a_deleted_agent_are_erased(case: Case) -> None:
    reader_id = case.services.new_agent()
    run = await case.gateway.start_run(case.agent_id)
    read = await case.gateway.start_run(reader_id)
    other = await case.gateway.start_run(case.services.new_agent())
    for started in (run, read, other):
        async for _ in case.gateway.stream(started.id):
            pass
    url = case.services.urls.admin_url
    await execute(
        url,
        "INSERT INTO gateway.memory_agents"
        " (project_id, agent_id, conversation_id, memory_agent_id, frequency)"
        " SELECT project_id, agent_id, conversation_id, $2, 1 FROM gateway.runs WHERE id = $1",
        run.id,
        reader_id,
    )
    # The agent loop deletes it with the agent.
    case.services.agents.agents.discard(reader_id)
    stub = agent_grpc.AgentServiceStub(case.gateway.channel)
    request = agent_pb.DeleteAgentRequest(agent_id=case.agent_id)
    await stub.DeleteAgent(request, metadata=case.gateway.metadata, timeout=30)
    # It has ended a moment ago, and may be followed.
    assert not await case.is_over()

    await execute(url, "UPDATE gateway.runs SET finish_time = now() - interval '1 minute'")
    await case.make_due()
    await eventually(case.is_over)

    count = "SELECT count(*) FROM gateway.run_events WHERE run_id = $1"
    assert await fetch_value(url, count, run.id) == 0
    assert await fetch_value(url, count, read.id) == 0
    assert await fetch_value(url, count, other.id) > 0
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in case.gateway.stream(run.id):
            pass
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert (await case.gateway.run(run.id)).state == run_service_pb2.RUN_STATE_COMPLETED


async def test_a_deletion_that_takes_long_does_not_hold_the_others(case: Case) -> None:
    agents, other_id = case.services.agents, case.services.new_agent()
    released = asyncio.Event()

    async def get(request: Any, context: Any) -> Any:
        if request.agent_id == case.agent_id:
            await released.wait()
        raise NotFoundError("No such agent.", reason=Reason.AGENT_NOT_FOUND)

    def fail() -> None:
        raise InternalError("The agent loop has died.")

    agents.on_delete = fail
    for agent_id in (case.agent_id, other_id):
        assert await replace(case, agent_id=agent_id).delete() is grpc.StatusCode.INTERNAL
    agents.on_delete, agents.on_get = None, get
    await case.make_due()
    recorded = "SELECT string_agg(agent_id, ' ') FROM gateway.agent_deletions"
    url = case.services.urls.admin_url

    async def others_are_over() -> bool:
        return bool(await fetch_value(url, recorded) == case.agent_id)

    await eventually(others_are_over)
    released.set()
    await eventually(case.is_over)


async def test_a_deletion_that_never_began_is_not_made_up_for(case: Case) -> None:
    def fail() -> None:
        raise InternalError("The agent loop has died.")

    case.services.agents.on_delete = fail
    assert await case.delete() is grpc.StatusCode.INTERNAL
    await case.make_due()
    await eventually(case.is_over)
    assert case.call_count == 1
    assert await case.schedule_state() == schedule_pb.SCHEDULE_STATE_ACTIVE


async def test_a_repeated_deletion_ends_what_the_first_one_has_left(case: Case) -> None:
    # The answer of the first call was lost.
    case.services.agents.agents.discard(case.agent_id)
    assert await case.delete() is grpc.StatusCode.NOT_FOUND
    assert await case.schedule_state() == schedule_pb.SCHEDULE_STATE_DISABLED
    assert await case.is_over()
