"""Creations of agents that were cut off are rolled back unless they are repeated."""

from __future__ import annotations

import grpc
import pytest

from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from sql_queries import execute, fetch_value
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.protocol.errors import InternalError, InvalidArgumentError, StrataError


async def create(gateway: Gateway) -> None:
    stub = agent_grpc.AgentServiceStub(gateway.channel)
    request = agent_pb.CreateAgentRequest(name="Ada")
    await stub.CreateAgent(request, metadata=gateway.metadata, timeout=30)


async def failed_creation(services: ScriptedServices, gateway: Gateway, error: StrataError) -> None:
    def fail() -> None:
        raise error

    services.agents.on_create = fail
    with pytest.raises(grpc.aio.AioRpcError):
        await create(gateway)


async def recorded(services: ScriptedServices) -> int:
    url = services.urls.admin_url
    return int(await fetch_value(url, "SELECT count(*) FROM gateway.agent_creations"))


async def test_creations_that_were_cut_off_are_rolled_back_once_for_a_project(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    for _ in range(2):
        await failed_creation(services, gateway, InternalError("The agent loop has died."))
    assert await recorded(services) == 2
    url = services.urls.admin_url
    make_due = "UPDATE gateway.agent_creations SET due_time = now()"
    services.unfinished.failures = 1
    await execute(url, make_due)
    await eventually(lambda: len(services.unfinished.projects) == 1)
    assert await recorded(services) == 2

    await execute(url, make_due)

    async def is_over() -> bool:
        return await recorded(services) == 0

    await eventually(is_over)
    assert len(services.unfinished.projects) == 2
    assert len(set(services.unfinished.projects)) == 1


async def test_creations_that_ended_or_were_refused_are_not_recorded(
    services: ScriptedServices,
) -> None:
    gateway = await services.gateway()
    await create(gateway)
    await failed_creation(services, gateway, InvalidArgumentError("A wrong name."))
    assert await recorded(services) == 0
