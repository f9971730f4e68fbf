"""Deletions of agents that were interrupted are finished; those that never began are dropped."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import pytest
import pytest_asyncio

from integration.gateway.schedule_calls import Schedules
from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from sql_queries import execute, fetch_value
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.gateway.v1 import schedule_service_pb2 as schedule_pb
from strata.protocol.errors import InternalError


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
