"""`enable_sleeptime`: an agent and its memory agent are made, changed and deleted together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chat_messages import roles
from inner_services import InnerServices
from strata.agent_loop.agents.memory_agents import PERSONA_DESCRIPTION, creation_of_memory_agent
from strata.agent_loop.clients.archival import ArchivalClient
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    UnavailableError,
)
from strata.shared.agent_types import AgentType
from strata.shared.tool_catalogue import default_tools

pytestmark = pytest.mark.asyncio(loop_scope="session")
ON = {"enable_sleeptime": True}


async def get(services: InnerServices, agent_id: str) -> pb.Agent:
    response = await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent_id))
    agent: pb.Agent = response.agent
    return agent


async def labels(services: InnerServices, agent_id: str) -> list[str]:
    response = await services.blocks.ListBlocks(block_pb.ListBlocksRequest(agent_id=agent_id))
    return sorted(block.label for block in response.blocks)


async def names(services: InnerServices) -> list[str]:
    response = await services.agents.ListAgents(pb.ListAgentsRequest())
    return sorted(agent.name for agent in response.agents)


async def is_gone(services: InnerServices, agent_id: str) -> bool:
    with pytest.raises(NotFoundError) as raised:
        await get(services, agent_id)
    return raised.value.reason is Reason.AGENT_NOT_FOUND


async def test_enable_sleeptime_makes_a_memory_agent_with_the_same_blocks(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(name="chat", enable_sleeptime=True)

    assert agent.enable_sleeptime
    assert agent.sleeptime_agent_frequency == 5
    # A letta_v1_agent replies in plain text: send_message is not among its tools.
    assert list(agent.tools) == list(default_tools(AgentType.LETTA_V1, sleeptime=True))
    assert {"conversation_search", "archival_memory_search"} <= set(agent.tools)
    assert not {"send_message", "memory_insert", "memory_replace"} & set(agent.tools)
    memory = await get(services, agent.memory_agent_id)
    assert (memory.name, memory.type) == ("chat-sleeptime", pb.AGENT_TYPE_SLEEPTIME)
    assert memory.tends_agent_id == agent.id
    assert not memory.enable_sleeptime
    assert set(memory.tools) == {
        "memory_replace",
        "memory_insert",
        "memory_rethink",
        "memory_finish_edits",
    }
    ends = [
        rule.tool_name
        for rule in memory.tool_rules
        if rule.type == tool_pb2.TOOL_RULE_TYPE_EXIT_LOOP
    ]
    assert ends == ["memory_finish_edits"]
    assert await labels(services, memory.id) == ["human", "memory_persona", "persona"]
    assert await labels(services, agent.id) == ["human", "persona"]
    persona = await services.blocks.GetBlock(
        block_pb.GetBlockRequest(agent_id=memory.id, label="memory_persona")
    )
    assert persona.block.description == PERSONA_DESCRIPTION
    # A memory agent has no login message.
    assert roles((await services.window(memory)).messages) == ["system"]


async def test_an_edit_of_the_chat_agent_is_seen_by_its_memory_agent(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(enable_sleeptime=True)
    request = block_pb.CreateBlockRequest(
        block=block_pb.NewBlock(label="project", value="Strata"), agent_id=agent.id
    )
    await services.blocks.CreateBlock(request)

    shared = await services.blocks.GetBlock(
        block_pb.GetBlockRequest(agent_id=agent.memory_agent_id, label="project")
    )

    assert shared.block.value == "Strata"


async def test_a_repeated_creation_returns_the_same_pair(services: InnerServices) -> None:
    fields: dict[str, Any] = {"name": "chat", "enable_sleeptime": True, "request_id": "once"}
    first = await services.make_agent(**fields)
    second = await services.make_agent(**fields)

    assert (second.id, second.memory_agent_id) == (first.id, first.memory_agent_id)
    assert await names(services) == ["chat", "chat-sleeptime"]


async def test_a_creation_that_cannot_create_its_memory_agent_leaves_nothing(
    services: InnerServices,
) -> None:
    await services.make_agent(name="chat-sleeptime")

    with pytest.raises(AlreadyExistsError) as raised:
        await services.make_agent(name="chat", enable_sleeptime=True)

    assert raised.value.reason is Reason.NAME_TAKEN
    assert await names(services) == ["chat-sleeptime"]
    blocks = await services.blocks.ListBlocks(block_pb.ListBlocksRequest())
    assert len(blocks.blocks) == 2


async def test_deleting_an_agent_deletes_its_memory_agent(services: InnerServices) -> None:
    agent = await services.make_agent(name="chat", enable_sleeptime=True)

    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=agent.id))

    assert await is_gone(services, agent.id)
    assert await is_gone(services, agent.memory_agent_id)
    assert not (await services.blocks.ListBlocks(block_pb.ListBlocksRequest())).blocks
    # Both names are free again.
    await services.make_agent(name="chat", enable_sleeptime=True)


async def test_agent_works_after_its_memory_agent_is_deleted(services: InnerServices) -> None:
    agent = await services.make_agent(enable_sleeptime=True)

    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=agent.memory_agent_id))

    alone = await get(services, agent.id)
    assert (alone.enable_sleeptime, alone.memory_agent_id) == (False, "")
    assert alone.revision > agent.revision
    assert await labels(services, agent.id) == ["human", "persona"]


async def test_an_update_turns_the_memory_agent_on_and_off(services: InnerServices) -> None:
    agent = await services.make_agent(name="chat")
    tools = list(agent.tools)

    on = await services.update_agent(agent, enable_sleeptime=True, sleeptime_agent_frequency=2)
    assert on.enable_sleeptime
    assert on.sleeptime_agent_frequency == 2
    assert list(on.tools) == tools
    assert await labels(services, on.memory_agent_id) == ["human", "memory_persona", "persona"]
    again = await services.update_agent(agent, enable_sleeptime=True)
    assert again.memory_agent_id == on.memory_agent_id
    assert (
        await services.update_agent(agent, sleeptime_agent_frequency=7)
    ).sleeptime_agent_frequency == 7

    off = await services.update_agent(agent, enable_sleeptime=False)
    assert (off.enable_sleeptime, off.memory_agent_id) == (False, "")
    assert await is_gone(services, on.memory_agent_id)
    assert await names(services) == ["chat"]
    assert await labels(services, agent.id) == ["human", "persona"]
    # It is enabled again.
    last = await services.update_agent(agent, enable_sleeptime=True)
    assert last.memory_agent_id not in ("", on.memory_agent_id)


async def test_a_repeated_update_gets_the_first_answer(services: InnerServices) -> None:
    agent = await services.make_agent()
    first = await services.update_agent(agent, enable_sleeptime=True, request_id="on")
    second = await services.update_agent(agent, enable_sleeptime=True, request_id="on")
    assert second == first


async def test_a_memory_agent_that_could_not_be_created_leaves_nothing_and_can_be_created_later(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(name="chat")
    large = block_pb.NewBlock(label="notes", value="word " * 3000)
    await services.blocks.CreateBlock(block_pb.CreateBlockRequest(block=large, agent_id=agent.id))
    small = pb.ModelConfig(context_window=4096)

    with pytest.raises(FailedPreconditionError) as raised:
        await services.update_agent(agent, enable_sleeptime=True, model=small)
    assert raised.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    assert await names(services) == ["chat"]
    # The name is free at once.
    other = await services.make_agent(name="chat-sleeptime")
    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=other.id))

    model = pb.ModelConfig(context_window=64_000)
    on = await services.update_agent(agent, enable_sleeptime=True, model=model)
    memory = await get(services, on.memory_agent_id)
    assert memory.model.context_window == 64_000
    assert await labels(services, memory.id) == ["human", "memory_persona", "notes", "persona"]


async def test_interrupted_creation_continues_with_the_new_settings(
    services: InnerServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await services.make_agent(name="chat")

    async def is_away(client: ArchivalClient, agent_id: str) -> None:
        raise UnavailableError("Archival memory is away.")

    # With a request id, objects made before a transient error are kept for the repetition.
    with monkeypatch.context() as patched:
        patched.setattr(ArchivalClient, "prepare", is_away)
        with pytest.raises(UnavailableError):
            await services.update_agent(agent, enable_sleeptime=True, request_id="on")
    await services.update_agent(agent, model=pb.ModelConfig(context_window=20_000), name="renamed")

    on = await services.update_agent(agent, enable_sleeptime=True)

    memory = await get(services, on.memory_agent_id)
    assert (memory.name, memory.model.context_window) == ("renamed-sleeptime", 20_000)


async def test_calls_that_enable_it_at_once_make_one_memory_agent(services: InnerServices) -> None:
    agent = await services.make_agent(name="chat")
    calls = [
        services.update_agent(agent, enable_sleeptime=True, expected_revision=revision)
        for revision in (0, 99, 0, 99, 0, 99)
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)

    on = await get(services, agent.id)
    for revision, answer in zip((0, 99, 0, 99, 0, 99), answers, strict=True):
        if revision:
            assert isinstance(answer, AbortedError)
        else:
            assert isinstance(answer, pb.Agent), answer
            assert answer.memory_agent_id == on.memory_agent_id
    assert await names(services) == ["chat", "chat-sleeptime"]
    assert await labels(services, on.memory_agent_id) == ["human", "memory_persona", "persona"]
    # No follower without an agent remains; it would hold the blocks of the agent.
    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=agent.id))
    assert not (await services.blocks.ListBlocks(block_pb.ListBlocksRequest())).blocks


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type": pb.AGENT_TYPE_SLEEPTIME, "enable_sleeptime": True}, "enable_sleeptime"),
        ({"sleeptime_agent_frequency": 3}, "sleeptime_agent_frequency"),
        ({"enable_sleeptime": True, "sleeptime_agent_frequency": -1}, "sleeptime_agent_frequency"),
        (
            {"enable_sleeptime": True, "sleeptime_agent_frequency": 1001},
            "sleeptime_agent_frequency",
        ),
    ],
)
async def test_wrong_settings_of_memory_agents_are_named(
    services: InnerServices, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        await services.make_agent(**fields)
    assert [violation.field for violation in raised.value.violations] == [field]
    assert await names(services) == []


async def test_a_frequency_without_a_memory_agent_is_refused(services: InnerServices) -> None:
    agent = await services.make_agent()
    with pytest.raises(InvalidArgumentError) as raised:
        await services.update_agent(agent, sleeptime_agent_frequency=3)
    assert raised.value.violations[0].field == "sleeptime_agent_frequency"


async def test_a_long_name_is_cut_for_the_memory_agent(services: InnerServices) -> None:
    agent = await services.make_agent(name="n" * 128, enable_sleeptime=True)
    memory = await get(services, agent.memory_agent_id)
    assert memory.name == "n" * 118 + "-sleeptime"


async def test_a_client_cannot_send_the_request_id_of_a_memory_agent(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(enable_sleeptime=True)
    with pytest.raises(InvalidArgumentError):
        await services.make_agent(request_id=creation_of_memory_agent(agent.id).id)


async def test_a_voice_agent_keeps_its_memory_agent_and_its_buffer_can_be_changed(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(
        name="Vera", type=pb.AGENT_TYPE_VOICE_CONVO, enable_sleeptime=True
    )
    memory = await get(services, agent.memory_agent_id)
    assert (memory.name, memory.type) == ("Vera-sleeptime", pb.AGENT_TYPE_VOICE_SLEEPTIME)
    assert await labels(services, memory.id) == ["human", "memory_persona", "persona"]
    lengths = (agent.max_message_buffer_length, agent.min_message_buffer_length)
    assert (*lengths, agent.sleeptime_agent_frequency) == (30, 15, 0)

    changed = await services.update_agent(
        agent, max_message_buffer_length=12, min_message_buffer_length=4
    )
    assert (changed.max_message_buffer_length, changed.min_message_buffer_length) == (12, 4)
    changed = await services.update_agent(agent, min_message_buffer_length=6)
    assert (changed.max_message_buffer_length, changed.min_message_buffer_length) == (12, 6)
    for fields, wrong in (
        ({"min_message_buffer_length": 12}, "min_message_buffer_length"),
        (
            {"max_message_buffer_length": 0, "min_message_buffer_length": 30},
            "min_message_buffer_length",
        ),
        ({"enable_sleeptime": False}, "enable_sleeptime"),
        ({"sleeptime_agent_frequency": 3}, "sleeptime_agent_frequency"),
        ({"sleeptime_agent_frequency": 3, **ON}, "sleeptime_agent_frequency"),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            await services.update_agent(agent, **fields)
        assert [v.field for v in raised.value.violations] == [wrong]
    other = await services.make_agent(**ON)
    with pytest.raises(InvalidArgumentError) as raised:
        await services.update_agent(other, max_message_buffer_length=9)
    assert [v.field for v in raised.value.violations] == ["max_message_buffer_length"]

    # The memory agent can be deleted alone, and made again.
    await services.agents.DeleteAgent(pb.DeleteAgentRequest(agent_id=memory.id))
    assert not (await get(services, agent.id)).enable_sleeptime
    again = await services.update_agent(agent, **ON)
    assert (await get(services, again.memory_agent_id)).type == pb.AGENT_TYPE_VOICE_SLEEPTIME
    assert (again.sleeptime_agent_frequency, again.max_message_buffer_length) == (0, 12)
