"""Messages of the user that are packed for the model, and stored as they were sent."""

from __future__ import annotations

import json
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from doubles.script import call, say
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError

pytestmark = pytest.mark.asyncio(loop_scope="session")


def texts(services: InnerServices) -> list[str]:
    """The texts of the user in the newest request."""
    sent = []
    for message in services.model.requests[-1].body["messages"]:
        if message["role"] == "user":
            content = message["content"]
            parts = content if isinstance(content, list) else [{"text": content}]
            sent.append("".join(part.get("text", "") for part in parts))
    return sent


@pytest.mark.parametrize("handle", ["test/test-model", "claude/test-model"])
async def test_a_packed_message_is_sent_as_json_and_stored_as_text(
    services: InnerServices, handle: str
) -> None:
    agent = await services.make_agent(
        name="Bo",
        timezone="Asia/Tokyo",
        model={"handle": handle},
        packaging={"pack_user_messages": True, "location": "Tokyo"},
    )
    assert agent.packaging == pb.MessagePackaging(pack_user_messages=True, location="Tokyo")
    services.model.script(call("conversation_search", {"query": "x"}), say("Hi."), say("Again."))
    await services.run(agent, "Olá!")

    [text] = [text for text in texts(services) if "user_message" in text]
    stored = next(
        m for m in (await services.window(agent)).messages if m.parts[0].text.text == "Olá!"
    )
    sent = stored.create_time.ToDatetime(tzinfo=UTC).astimezone(ZoneInfo("Asia/Tokyo"))
    time = f"{sent:%Y-%m-%d %I:%M:%S %p} JST+0900"
    assert text == (
        '{"type": "user_message", "message": "Olá!", "time": "' + time + '", "location": "Tokyo"}'
    )
    await services.run(agent, "And?")
    assert text in texts(services)


async def test_agent_is_shown_raw_text_by_default_and_after_a_change(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(name="Bo")
    assert agent.packaging == pb.MessagePackaging()
    services.model.script(say("Hi."), say("Hi."), say("Hi."))
    await services.run(agent, "One.")
    assert texts(services) == ["One."]

    packaging = pb.MessagePackaging(pack_user_messages=True)
    request = pb.UpdateAgentRequest(agent_id=agent.id, packaging=packaging)
    await services.agents.UpdateAgent(request)
    await services.run(agent, "Two.")
    assert [json.loads(text)["message"] for text in texts(services)] == ["One.", "Two."]

    # A change of another field does not change it.
    await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, description="d"))
    read = await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))
    assert read.agent.packaging == packaging
    request = pb.UpdateAgentRequest(agent_id=agent.id, packaging=pb.MessagePackaging())
    await services.agents.UpdateAgent(request)
    await services.run(agent, "Three.")
    assert texts(services) == ["One.", "Two.", "Three."]


@pytest.mark.parametrize("location", ["x" * 257, "a\0b"])
async def test_wrong_location_is_named(services: InnerServices, location: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        await services.make_agent(packaging={"location": location})
    assert [violation.field for violation in raised.value.violations] == ["packaging.location"]
