"""Groups of the kinds sleeptime and voice_sleeptime: an agent and its memory agent."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from failures import failure
from inner_services import InnerServices
from integration.agent_loop.group_calls import agents, block, create, get, labels, members
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError, Reason
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLEEPTIME, VOICE = pb.MANAGER_TYPE_SLEEPTIME, pb.MANAGER_TYPE_VOICE_SLEEPTIME


async def make_pair(services: InnerServices, kind: Any = SLEEPTIME) -> agent_pb.Agent:
    """Creates an agent with a memory agent that runs after 7 turns, or at more than 9 messages."""
    if kind == VOICE:
        return await services.make_agent(
            type=agent_pb.AGENT_TYPE_VOICE_CONVO,
            enable_sleeptime=True,
            max_message_buffer_length=9,
            min_message_buffer_length=4,
        )
    return await services.make_agent(enable_sleeptime=True, sleeptime_agent_frequency=7)


def config(agent: agent_pb.Agent | str, kind: Any = SLEEPTIME, **fields: Any) -> pb.ManagerConfig:
    agent_id = agent if isinstance(agent, str) else agent.id
    return pb.ManagerConfig(type=kind, manager_agent_id=agent_id, **fields)


async def update(services: InnerServices, group: pb.Group, **fields: Any) -> pb.Group:
    request = pb.UpdateGroupRequest(group_id=group.id, **fields)
    return (await services.groups.UpdateGroup(request)).group


async def violations(call: Any) -> dict[str, str]:
    """Returns the problems of the fields of a request that must be refused."""
    error = await failure(call)
    assert isinstance(error, InvalidArgumentError)
    return {violation.field: violation.description for violation in error.violations}


def settings(group: pb.Group) -> tuple[int, int, int]:
    manager = group.manager
    return (
        manager.sleeptime_agent_frequency,
        manager.max_message_buffer_length,
        manager.min_message_buffer_length,
    )


@pytest.mark.parametrize("kind", [SLEEPTIME, VOICE])
@pytest.mark.parametrize("named", [False, True])
async def test_the_member_is_the_memory_agent_and_the_settings_are_those_of_the_agent(
    services: InnerServices, kind: Any, named: bool
) -> None:
    agent = await make_pair(services, kind)
    agent_ids = [agent.memory_agent_id] if named else []
    made = await create(services, agent_ids=agent_ids, manager=config(agent, kind))
    assert await get(services, made.id) == made
    assert members(made) == [agent.memory_agent_id]
    assert made.manager_agent.agent_id == agent.id
    assert settings(made) == ((0, 9, 4) if kind == VOICE else (7, 0, 0))
    # A group can be sent back as it was read; it shows later changes of the agent.
    assert await update(services, made, manager=made.manager) == made
    name = "max_message_buffer_length" if kind == VOICE else "sleeptime_agent_frequency"
    change: dict[str, Any] = {"agent_id": agent.id, name: 12}
    await services.agents.UpdateAgent(agent_pb.UpdateAgentRequest(**change))
    assert settings(await get(services, made.id)) == ((0, 12, 4) if kind == VOICE else (12, 0, 0))


async def test_group_that_is_not_a_pair_is_refused_with_advice(services: InnerServices) -> None:
    agent, voice = await make_pair(services), await make_pair(services, VOICE)
    [alone] = await agents(services, 1)
    other = (await make_pair(services)).memory_agent_id

    problems = await violations(create(services, manager=config(alone)))
    assert set(problems) == {"manager.manager_agent_id"}
    assert "turn on enable_sleeptime" in problems["manager.manager_agent_id"]
    for agent_ids in ([alone], [other], [agent.memory_agent_id, alone]):
        problems = await violations(create(services, agent_ids=agent_ids, manager=config(agent)))
        assert set(problems) == {"agent_ids"}
        assert agent.memory_agent_id in problems["agent_ids"]
    for pair, kind, right in (
        (agent, VOICE, "must be sleeptime"),
        (voice, SLEEPTIME, "must be voice_sleeptime"),
    ):
        problems = await violations(create(services, manager=config(pair, kind)))
        assert right in problems["manager.type"]
    problems = await violations(
        create(services, manager=config(agent, sleeptime_agent_frequency=8))
    )
    assert set(problems) == {"manager.sleeptime_agent_frequency"}
    assert "UpdateAgent" in problems["manager.sleeptime_agent_frequency"]
    lengths = {"max_message_buffer_length": 10, "min_message_buffer_length": 9}
    problems = await violations(create(services, manager=config(voice, VOICE, **lengths)))
    assert set(problems) == {f"manager.{name}" for name in lengths}
    error = await failure(create(services, manager=config(new_id("agent"))))
    assert error.reason is Reason.AGENT_NOT_FOUND
    error = await failure(create(services, manager=config(agent), agent_ids=[new_id("agent")]))
    assert isinstance(error, InvalidArgumentError)
    for agent_id in (agent.id, voice.id, alone):
        listed = await services.groups.ListGroups(pb.ListGroupsRequest(agent_id=agent_id))
        assert not listed.groups


async def test_a_refused_change_to_a_pair_attaches_no_block_and_changes_nothing(
    services: InnerServices,
) -> None:
    first, second = await agents(services, 2)
    agent, plan = await make_pair(services), await block(services)
    made = await create(services, agent_ids=[first, second])
    shared = pb.SharedBlockList(block_ids=[plan])
    problems = await violations(update(services, made, manager=config(first), shared_blocks=shared))
    assert set(problems) == {"manager.manager_agent_id"}
    problems = await violations(
        update(services, made, members=pb.MemberList(), shared_blocks=shared)
    )
    assert set(problems) == {"members.agent_ids"}
    assert await get(services, made.id) == made
    assert "plan" not in await labels(services, first)

    # The members of another kind are replaced by the memory agent, and it gets the blocks.
    changed = await update(services, made, manager=config(agent), shared_blocks=shared)
    assert members(changed) == [agent.memory_agent_id]
    for agent_id in (agent.id, agent.memory_agent_id):
        assert "plan" in await labels(services, agent_id)
    problems = await violations(update(services, changed, members=pb.MemberList(agent_ids=[first])))
    assert set(problems) == {"members.agent_ids"}
    assert await update(services, changed, members=pb.MemberList()) == changed
    # In the other direction the members have to be named.
    robin = pb.ManagerConfig(type=pb.MANAGER_TYPE_ROUND_ROBIN)
    changed = await update(
        services, changed, manager=robin, members=pb.MemberList(agent_ids=[first, second])
    )
    assert members(changed) == [first, second]


async def test_a_group_whose_memory_agent_was_deleted_gets_the_next_one(
    services: InnerServices,
) -> None:
    agent = await make_pair(services)
    made = await create(services, manager=config(agent))

    async def turn(on: bool) -> agent_pb.Agent:
        request = agent_pb.UpdateAgentRequest(agent_id=agent.id, enable_sleeptime=on)
        return (await services.agents.UpdateAgent(request)).agent

    await turn(False)
    left = await get(services, made.id)
    assert (members(left), settings(left)) == ([], (0, 0, 0))
    # Changes of other fields do not cause a refusal.
    assert (await update(services, made, description="Ada.")).description == "Ada."
    problems = await violations(update(services, made, members=pb.MemberList()))
    assert "turn on enable_sleeptime" in problems["manager.manager_agent_id"]
    changed = await turn(True)
    assert changed.memory_agent_id != agent.memory_agent_id
    assert members(await get(services, made.id)) == []
    assert members(await update(services, made, members=pb.MemberList())) == [
        changed.memory_agent_id
    ]

    await services.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    left = await get(services, made.id)
    assert (members(left), left.manager.manager_agent_id) == ([], "")
    problems = await violations(update(services, made, members=pb.MemberList()))
    assert "is required" in problems["manager.manager_agent_id"]


async def test_a_stored_group_that_is_not_a_pair_can_be_read_and_repaired(
    services: InnerServices,
) -> None:
    """Development builds stored any agents, and settings of the group itself."""
    agent = await make_pair(services)
    [other] = await agents(services, 1)
    made = await create(services, manager=config(agent))
    connection = await asyncpg.connect(services.urls["agent_loop"].admin_url)
    try:
        await connection.execute(
            "UPDATE agent_loop.groups SET manager = manager || $1::jsonb WHERE id = $2",
            '{"sleeptime_agent_frequency": 5, "max_message_buffer_length": 30}',
            made.id,
        )
        await connection.execute(
            "UPDATE agent_loop.group_members SET agent_id = $1 WHERE group_id = $2", other, made.id
        )
    finally:
        await connection.close()
    stored = await get(services, made.id)
    assert (members(stored), settings(stored)) == ([other], (7, 0, 0))
    assert members(await update(services, stored, description="Ada.")) == [other]
    repaired = await update(services, stored, manager=stored.manager)
    assert members(repaired) == [agent.memory_agent_id]
