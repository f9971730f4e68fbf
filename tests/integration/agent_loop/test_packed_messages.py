"""Messages of the user that are packed for the model, and stored as they were sent."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from doubles.script import call, say
from inner_services import World
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def create(world: World, **fields: Any) -> pb.Agent:
    response = await world.agents.CreateAgent(pb.CreateAgentRequest(**fields))
    agent: pb.Agent = response.agent
    return agent


def texts(world: World) -> list[str]:
    """The texts of the user in the newest request."""
    sent = []
    for message in world.model.requests[-1].body["messages"]:
        if message["role"] == "user":
            content = message["content"]
            parts = content if isinstance(content, list) else [{"text": content}]
            sent.append("".join(part.get("text", "") for part in parts))
    return sent


@pytest.mark.parametrize("handle", ["test/test-model", "claude/test-model"])
async def test_packed_agent_is_shown_json_and_stores_the_text(world: World, handle: str) -> None:
    agent = await create(
        world,
        name="Bo",
        timezone="Asia/Tokyo",
        model={"handle": handle},
        packaging={"pack_user_messages": True, "location": "Tokyo"},
    )
    assert agent.packaging == pb.MessagePackaging(pack_user_messages=True, location="Tokyo")
    world.model.script(call("conversation_search", {"query": "x"}), say("Hi."), say("Again."))
    await world.run(agent, "Olá!")

    [text] = [text for text in texts(world) if "user_message" in text]
    stored = next(m for m in (await world.window(agent)).messages if m.parts[0].text.text == "Olá!")
    sent = stored.create_time.ToDatetime(tzinfo=UTC).astimezone(ZoneInfo("Asia/Tokyo"))
    time = f"{sent:%Y-%m-%d %I:%M:%S %p} JST+0900"
    assert text == (
        '{"type": "user_message", "message": "Olá!", "time": "' + time + '", "location": "Tokyo"}'
    )
    await world.run(agent, "And?")
    assert text in texts(world)


async def test_agent_is_shown_raw_text_by_default_and_after_a_change(world: World) -> None:
    agent = await create(world, name="Bo")
    assert agent.packaging == pb.MessagePackaging()
    world.model.script(say("Hi."), say("Hi."), say("Hi."))
    await world.run(agent, "One.")
    assert texts(world) == ["One."]

    packaging = pb.MessagePackaging(pack_user_messages=True)
    request = pb.UpdateAgentRequest(agent_id=agent.id, packaging=packaging)
    await world.agents.UpdateAgent(request)
    await world.run(agent, "Two.")
    assert [json.loads(text)["message"] for text in texts(world)] == ["One.", "Two."]

    # Another change leaves it as it is.
    await world.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, description="d"))
    read = await world.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))
    assert read.agent.packaging == packaging
    request = pb.UpdateAgentRequest(agent_id=agent.id, packaging=pb.MessagePackaging())
    await world.agents.UpdateAgent(request)
    await world.run(agent, "Three.")
    assert texts(world) == ["One.", "Two.", "Three."]


@pytest.mark.parametrize("location", ["x" * 257, "a\0b"])
async def test_wrong_location_is_named(world: World, location: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        await create(world, packaging={"location": location})
    assert [violation.field for violation in raised.value.violations] == ["packaging.location"]
