"""Groups as they are stored: create, read, change, delete, and their shared blocks."""

from __future__ import annotations

from typing import Any

import pytest

from failures import failure
from inner_services import InnerServices
from integration.agent_loop.group_calls import agents, block, create, get, labels, members
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
)
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_group_is_stored_with_its_members_in_order_and_their_names(
    services: InnerServices,
) -> None:
    first, second, third, manager = await agents(services, 4)
    made = await create(
        services,
        description="Plans trips.",
        agent_ids=[third, first, second],
        manager=pb.ManagerConfig(
            type=pb.MANAGER_TYPE_DYNAMIC, manager_agent_id=manager, max_turns=7
        ),
    )
    assert await get(services, made.id) == made
    assert members(made) == [third, first, second]
    assert all(member.name for member in made.members)
    assert made.manager_agent.agent_id == manager
    assert (made.manager.max_turns, made.manager.termination_token) == (7, "DONE!")
    assert made.revision == 1


async def test_all_wrong_fields_of_a_group_are_named(services: InnerServices) -> None:
    [agent] = await agents(services, 1)
    error = await failure(
        create(
            services,
            request_id="é",
            agent_ids=[agent, agent],
            manager=pb.ManagerConfig(
                type=pb.MANAGER_TYPE_ROUND_ROBIN,
                manager_agent_id=agent,
                max_turns=101,
                termination_token="STOP",
                sleeptime_agent_frequency=-1,
            ),
        )
    )
    assert isinstance(error, InvalidArgumentError)
    assert {violation.field for violation in error.violations} == {
        "request_id",
        "manager.manager_agent_id",
        "manager.max_turns",
        "manager.termination_token",
        "manager.sleeptime_agent_frequency",
        "agent_ids[1]",
    }
    for malformed in (
        {"agent_ids": [agent, "x"]},
        {"agent_ids": [agent], "shared_block_ids": ["x"]},
    ):
        assert (await failure(create(services, **malformed))).reason is Reason.INVALID_ID
    wrong: list[dict[str, Any]] = [
        {"agent_ids": []},
        {"agent_ids": [new_id("agent") for _ in range(33)]},
        {"agent_ids": [agent], "manager": pb.ManagerConfig(type=pb.MANAGER_TYPE_SUPERVISOR)},
        {
            "agent_ids": [agent],
            "manager": pb.ManagerConfig(type=pb.MANAGER_TYPE_DYNAMIC, manager_agent_id=agent),
        },
    ]
    for fields in wrong:
        assert isinstance(await failure(create(services, **fields)), InvalidArgumentError)


async def test_a_group_of_an_unknown_agent_is_refused_and_nothing_is_stored(
    services: InnerServices,
) -> None:
    [agent] = await agents(services, 1)
    error = await failure(create(services, agent_ids=[agent, new_id("agent")]))
    assert error.reason is Reason.AGENT_NOT_FOUND
    assert not await listed(services, agent_id=agent)


async def listed(services: InnerServices, **fields: Any) -> list[str]:
    page = await services.groups.ListGroups(pb.ListGroupsRequest(**fields))
    return [group.id for group in page.groups]


async def test_a_repeated_request_gives_the_first_group(services: InnerServices) -> None:
    [agent] = await agents(services, 1)
    request_id = new_id("request")
    first = await create(services, request_id=request_id, agent_ids=[agent])
    assert await create(services, request_id=request_id, agent_ids=[agent]) == first
    error = await failure(
        create(services, request_id=request_id, agent_ids=[agent], description="Other.")
    )
    assert isinstance(error, AlreadyExistsError)
    assert error.reason is Reason.REQUEST_ID_REUSED


async def test_shared_blocks_are_attached_to_every_member_or_to_none(
    services: InnerServices,
) -> None:
    first, second, manager = await agents(services, 3)
    plan = await block(services)
    managed = pb.ManagerConfig(type=pb.MANAGER_TYPE_DYNAMIC, manager_agent_id=manager)
    made = await create(
        services, agent_ids=[first, second], manager=managed, shared_block_ids=[plan]
    )
    assert list(made.shared_block_ids) == [plan]
    for agent in (first, second, manager):
        assert "plan" in await labels(services, agent)
    # The second member has another block with the label.
    third, fourth = await agents(services, 2)
    goals, other = await block(services, "goals"), await block(services, "goals")
    await services.blocks.AttachBlock(block_pb.AttachBlockRequest(agent_id=fourth, block_id=other))
    request = {"agent_ids": [third, fourth], "shared_block_ids": [plan, goals]}
    error = await failure(create(services, request_id=new_id("request"), **request))
    assert error.reason is Reason.NAME_TAKEN
    assert not {"plan", "goals"} & set(await labels(services, third))
    assert not await listed(services, agent_id=third)
    error = await failure(create(services, agent_ids=[third], shared_block_ids=[new_id("block")]))
    assert error.reason is Reason.BLOCK_NOT_FOUND
    assert not await listed(services, agent_id=third)


async def test_an_update_changes_the_set_fields_once_and_checks_the_revision(
    services: InnerServices,
) -> None:
    first, second, third = await agents(services, 3)
    plan = await block(services)
    made = await create(services, agent_ids=[first, second], description="Before.")
    request = pb.UpdateGroupRequest(
        request_id=new_id("request"),
        group_id=made.id,
        members=pb.MemberList(agent_ids=[third, first]),
        shared_blocks=pb.SharedBlockList(block_ids=[plan]),
        manager=pb.ManagerConfig(type=pb.MANAGER_TYPE_SWARM, max_turns=3),
        expected_revision=1,
    )
    changed = (await services.groups.UpdateGroup(request)).group
    assert (members(changed), changed.description) == ([third, first], "Before.")
    assert changed.manager.type == pb.MANAGER_TYPE_SWARM
    assert changed.revision == 2
    assert "plan" in await labels(services, third)
    assert "plan" not in await labels(services, second)
    assert (await services.groups.UpdateGroup(request)).group == changed
    request.request_id = ""
    error = await failure(services.groups.UpdateGroup(request))
    assert isinstance(error, AbortedError)
    assert error.reason is Reason.REVISION_MISMATCH
    error = await failure(
        services.groups.UpdateGroup(
            pb.UpdateGroupRequest(
                group_id=made.id, members=pb.MemberList(agent_ids=[new_id("agent")])
            )
        )
    )
    assert error.reason is Reason.AGENT_NOT_FOUND
    assert members(await get(services, made.id)) == [third, first]
    # A member that joins later gets the blocks that the group shares.
    later = pb.UpdateGroupRequest(group_id=made.id, members=pb.MemberList(agent_ids=[second]))
    await services.groups.UpdateGroup(later)
    assert "plan" in await labels(services, second)


async def test_a_deleted_agent_is_removed_from_its_groups(services: InnerServices) -> None:
    first, second, manager = await agents(services, 3)
    made = await create(
        services,
        agent_ids=[first, second],
        manager=pb.ManagerConfig(type=pb.MANAGER_TYPE_DYNAMIC, manager_agent_id=manager),
    )
    for agent in (first, manager):
        await services.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent))
    left = await get(services, made.id)
    assert members(left) == [second]
    assert not left.HasField("manager_agent")
    assert left.manager.manager_agent_id == ""
    assert left.manager.type == pb.MANAGER_TYPE_DYNAMIC


async def test_deleting_a_group_keeps_its_agents_and_their_blocks(services: InnerServices) -> None:
    [agent] = await agents(services, 1)
    plan = await block(services)
    made = await create(services, agent_ids=[agent], shared_block_ids=[plan])
    await services.groups.DeleteGroup(pb.DeleteGroupRequest(group_id=made.id))
    for call in (
        get(services, made.id),
        services.groups.DeleteGroup(pb.DeleteGroupRequest(group_id=made.id)),
    ):
        error = await failure(call)
        assert isinstance(error, NotFoundError)
        assert error.reason is Reason.GROUP_NOT_FOUND
    assert "plan" in await labels(services, agent)


async def test_groups_are_listed_by_kind_and_by_agent_page_by_page(services: InnerServices) -> None:
    first, second = await agents(services, 2)
    made = [(await create(services, agent_ids=[first])).id for _ in range(3)]
    swarm = await create(
        services, agent_ids=[second], manager=pb.ManagerConfig(type=pb.MANAGER_TYPE_SWARM)
    )
    page = await services.groups.ListGroups(pb.ListGroupsRequest(agent_id=first, page_size=2))
    assert [group.id for group in page.groups] == made[:2]
    rest = await listed(services, agent_id=first, page_size=2, page_token=page.next_page_token)
    assert rest == made[2:]
    only = await listed(services, agent_id=second, manager_type=pb.MANAGER_TYPE_SWARM)
    assert only == [swarm.id]
    assert not await listed(services, agent_id=first, manager_type=pb.MANAGER_TYPE_SWARM)


async def test_a_group_is_not_seen_from_another_project(services: InnerServices) -> None:
    [agent] = await agents(services, 1)
    made = await create(services, agent_ids=[agent])
    with services.signed_in():
        error = await failure(get(services, made.id))
        assert error.reason is Reason.GROUP_NOT_FOUND
        error = await failure(create(services, agent_ids=[agent]))
        assert error.reason is Reason.AGENT_NOT_FOUND
        assert not await listed(services)


async def test_an_update_that_changes_nothing_keeps_the_revision(services: InnerServices) -> None:
    ids, plan = await agents(services, 2), await block(services)
    made = await create(services, agent_ids=ids, shared_block_ids=[plan], description="Trips.")
    request = pb.UpdateGroupRequest(
        request_id=new_id("request"),
        group_id=made.id,
        description="Trips.",
        members=pb.MemberList(agent_ids=ids),
        shared_blocks=pb.SharedBlockList(block_ids=[plan]),
        manager=made.manager,
    )
    for _ in range(2):
        assert (await services.groups.UpdateGroup(request)).group == made
    request.request_id, request.members.agent_ids[:] = "", ids[::-1]
    changed = (await services.groups.UpdateGroup(request)).group
    assert (members(changed), changed.revision) == (ids[::-1], 2)


async def test_a_group_can_be_changed_after_a_shared_block_was_deleted(
    services: InnerServices,
) -> None:
    shared = await block(services)
    made = await create(services, agent_ids=await agents(services, 2), shared_block_ids=[shared])
    await services.blocks.DeleteBlock(block_pb.DeleteBlockRequest(block_id=shared))
    request = pb.UpdateGroupRequest(group_id=made.id, description="Other trips.")
    changed = (await services.groups.UpdateGroup(request)).group
    assert changed.description == "Other trips."


async def test_holder_of_a_swarm_is_kept_between_runs(services: InnerServices) -> None:
    first, second, third = await agents(services, 3)
    made = await create(
        services,
        agent_ids=[first, second, third],
        manager=pb.ManagerConfig(type=pb.MANAGER_TYPE_SWARM),
    )
    one, two = new_id("run"), new_id("run")

    async def begin(run_id: str) -> str:
        request = turn_pb.BeginGroupRunRequest(group_id=made.id, run_id=run_id)
        return str((await services.turns.BeginGroupRun(request)).holder_agent_id)

    async def hand_over(run_id: str, number: int, agent_id: str) -> str:
        await services.turns.HandOver(
            turn_pb.HandOverRequest(
                group_id=made.id, run_id=run_id, number=number, holder_agent_id=agent_id
            )
        )
        return (await get(services, made.id)).holder_agent_id

    assert made.holder_agent_id == first
    assert not await begin(one)
    assert await hand_over(one, 1, second) == second
    assert await hand_over(one, 2, third) == third
    # A replayed run begins with the same holder, and changes nothing.
    assert not await begin(one)
    assert await hand_over(one, 1, second) == third
    assert await begin(two) == third
    assert await begin(two) == third
    # A gateway that has lost the run changes nothing.
    assert await hand_over(one, 3, first) == third
    assert await hand_over(two, 1, second) == second
    assert await listed(services, agent_id=second) == [made.id]
    # When a member leaves the group, or is deleted, the first member gets the conversation.
    request = pb.UpdateGroupRequest(
        group_id=made.id, members=pb.MemberList(agent_ids=[third, second])
    )
    assert (await services.groups.UpdateGroup(request)).group.holder_agent_id == second
    await services.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=second))
    assert (await get(services, made.id)).holder_agent_id == third
    with services.signed_in():
        for call in (begin(two), hand_over(two, 2, third)):
            assert (await failure(call)).reason is Reason.GROUP_NOT_FOUND
    await services.groups.DeleteGroup(pb.DeleteGroupRequest(group_id=made.id))
    assert (await failure(begin(two))).reason is Reason.GROUP_NOT_FOUND


async def test_only_swarms_have_a_holder(services: InnerServices) -> None:
    made = await create(services, agent_ids=await agents(services, 2))
    assert not made.holder_agent_id


@pytest.mark.parametrize("name", ["hand_over", "send_message_to_all_agents_in_group"])
async def test_tools_of_groups_cannot_be_attached_to_an_agent(
    services: InnerServices, name: str
) -> None:
    error = await failure(services.make_agent(tools=[name]))
    assert isinstance(error, InvalidArgumentError)
    assert [violation.field for violation in error.violations] == ["tools[0]"]
    assert "only groups offer it" in error.violations[0].description
