"""An agent in a small window: edits that are too large are refused, and the turn continues."""

from __future__ import annotations

import json

import pytest

from chat_messages import roles
from doubles.script import call, say
from failures import exceeded_window
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.protocol.errors import NotFoundError
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The smallest allowed window, about 4,000 tokens.
TINY = 4_096
# Bytes that exceed the tiny window even at 12 bytes per token, but fit a window of 32,000 tokens
# even at 2 bytes per token.
TOO_MUCH = 36_000


def model(window: int) -> agent_pb.ModelConfig:
    return agent_pb.ModelConfig(handle="openai/test-model", context_window=window)


async def small_agent(system: System, window: int = TINY) -> agent_pb.Agent:
    request = agent_pb.CreateAgentRequest(
        name=f"small {new_id('x')[-8:]}",
        blocks=[block_pb.NewBlock(label="human", value="Name: Ada")],
        model=model(window),
    )
    agent: agent_pb.Agent = (await system.agents.CreateAgent(request)).agent
    return agent


async def write(system: System, agent: agent_pb.Agent, value: str) -> None:
    block = await system.block(agent, "human")
    request = block_pb.UpdateBlockRequest(block_id=block.id, value=value, limit=40_000)
    await system.blocks.UpdateBlock(request)


async def fill(system: System, agent: agent_pb.Agent, spare: int) -> str:
    """Fills an agent's memory through the API until `spare` bytes are free."""
    error = await exceeded_window(write(system, agent, "x" * TOO_MUCH))
    over = int(error.metadata["size"]) - int(error.metadata["limit"])
    value = "x" * (TOO_MUCH - over - spare)
    await write(system, agent, value)
    return value


async def test_the_api_cannot_make_memory_too_large(system: System) -> None:
    agent = await small_agent(system)
    before = await system.block(agent, "human")
    error = await exceeded_window(write(system, agent, "x" * TOO_MUCH))
    assert error.metadata["agent_id"] == agent.id
    assert error.message.startswith("Core memory would be too large for the context window:")
    assert await system.block(agent, "human") == before

    value = await fill(system, agent, 0)
    await exceeded_window(write(system, agent, value + "x"))
    await write(system, agent, value[1:])


async def test_a_model_that_exceeds_a_block_limit_gets_an_error_and_continues(
    system: System,
) -> None:
    agent = await small_agent(system)
    full = await fill(system, agent, 100)
    fact = "Likes tea. " * 20
    steps = iter(
        (
            call("memory_insert", {"label": "human", "new_str": fact}),
            call("memory_replace", {"label": "human", "old_str": full, "new_str": "Name: Ada"}),
            call("memory_insert", {"label": "human", "new_str": fact}),
            say("Noted, after tidying up."),
        )
    )
    # The window is so full that any step may compact it, so requests for summaries may follow.
    system.model.respond(lambda asked: next(steps) if "tools" in asked.body else say("- Talk."))
    ran = await system.send(agent, "I like tea, " + "really. " * 30)

    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert ran.text == "Noted, after tidying up."
    assert roles(ran.messages) == ["assistant", "tool"] * 3 + ["assistant"]
    asked = [request for request in system.model.requests if "tools" in request.body]
    tool_returns = [json.loads(request.answered[-1]) for request in asked[1:4]]
    assert [tool_return["status"] for tool_return in tool_returns] == ["Failed", "OK", "OK"]
    assert "Core memory would be too large for the context window" in tool_returns[0]["message"]
    assert "Nothing was changed: shorten a memory block by at least " in tool_returns[0]["message"]
    assert (await system.block(agent, "human")).value == f"Name: Ada\n{fact}"
    versions = await system.blocks.ListBlockVersions(
        block_pb.ListBlockVersionsRequest(block_id=(await system.block(agent, "human")).id)
    )
    assert [version.operation for version in versions.versions][:2] == ["insert", "string_replace"]


async def test_an_agent_with_full_memory_can_still_converse(system: System) -> None:
    agent = await small_agent(system)
    full = await fill(system, agent, 0)
    for number in range(6):
        system.model.respond(lambda asked: say("Indeed." if "tools" in asked.body else "- Talk."))
        line = f"Line {number}: " + "words and words " * 12
        ran = await system.send(agent, line)
        assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN, ran.finished
        request = next(r for r in reversed(system.model.requests) if "tools" in r.body)
        assert full in request.system
        assert request.last_text.strip() == line.strip(), "the user's message is sent completely"


async def test_a_window_that_is_too_small_is_refused_and_changes_nothing(system: System) -> None:
    agent = await small_agent(system, 32_000)
    await write(system, agent, "x" * (TOO_MUCH - 1_000))
    before = (await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=agent.id))).agent
    error = await exceeded_window(
        system.agents.UpdateAgent(agent_pb.UpdateAgentRequest(agent_id=agent.id, model=model(TINY)))
    )
    assert int(error.metadata["size"]) > TOO_MUCH - 1_000 > int(error.metadata["limit"])
    after = (await system.agents.GetAgent(agent_pb.GetAgentRequest(agent_id=agent.id))).agent
    assert after == before
    await write(system, agent, "x" * TOO_MUCH)
    system.model.script(say("Still here."))
    assert (await system.send(agent, "And now?")).text == "Still here."


async def test_an_agent_that_is_too_large_leaves_nothing_behind(system: System) -> None:
    name, label = f"large {new_id('x')[-8:]}", f"b{new_id('x')[-8:]}"
    request = agent_pb.CreateAgentRequest(
        name=name,
        model=model(TINY),
        blocks=[block_pb.NewBlock(label=label, value="x" * TOO_MUCH, limit=40_000)],
    )
    error = await exceeded_window(system.agents.CreateAgent(request))
    assert int(error.metadata["size"]) > TOO_MUCH
    await exceeded_window(
        system.agents.CreateAgent(
            agent_pb.CreateAgentRequest(name=name, model=model(TINY), system="y" * 60_000)
        )
    )
    with pytest.raises(NotFoundError):
        await system.agents.GetAgent(agent_pb.GetAgentRequest(name=name))
    listed = await system.blocks.ListBlocks(block_pb.ListBlocksRequest(label=label))
    assert not listed.blocks
    request.model.context_window = 32_000
    assert (await system.agents.CreateAgent(request)).agent.name == name
