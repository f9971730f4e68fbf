"""Compaction through the real services: on request, during a turn, and with pins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chat_messages import roles
from doubles.script import ModelCall, say
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def talked(services: InnerServices, turns: int = 4, **fields: Any) -> pb.Agent:
    agent = await services.make_agent(**fields)
    for number in range(turns):
        services.model.script(say(f"Answer {number}. " + "x" * 400))
        await services.run(agent, f"Question {number}. " + "y" * 400)
    return agent


async def compact(services: InnerServices, agent: pb.Agent) -> pb.CompactConversationResponse:
    return await services.agents.CompactConversation(
        pb.CompactConversationRequest(agent_id=agent.id)
    )


async def inspected(services: InnerServices, agent: pb.Agent) -> pb.GetContextWindowResponse:
    return await services.agents.GetContextWindow(pb.GetContextWindowRequest(agent_id=agent.id))


async def test_a_manual_compaction_uses_the_settings_of_the_agent(services: InnerServices) -> None:
    agent = await talked(services, compaction={"mode": "all", "prompt": "Sum up."})
    before = await services.window(agent)
    full = await inspected(services, agent)
    services.model.script(say("- Four questions."))

    done = await compact(services, agent)

    assert services.model.requests[-1].system == "Sum up."
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "summary", "user", "assistant"]
    assert window.messages[1] == done.summary
    part = done.summary.parts[0].summary
    assert (part.text, part.message_count) == ("- Four questions.", 6)
    assert part.first_message_id == before.messages[1].id
    assert part.last_message_id == before.messages[6].id
    response = await inspected(services, agent)
    parts = {part.name: part for part in response.parts}
    assert parts["summary"].count == 1
    assert parts["summary"].tokens > 0
    assert parts["messages"].count == 2
    assert response.used_tokens < full.used_tokens
    assert done.tokens_after < done.tokens_before
    assert full.compaction_tokens == int(32_000 * 0.9)

    assert not (await compact(services, agent)).HasField("summary"), (
        "no more messages can be evicted"
    )
    services.model.script(say("Still here."))
    ran = await services.run(agent, "And now?")
    assert ran.text == "Still here."
    assert "- 6 previous messages" in services.model.requests[-1].system


async def test_manual_compaction_needs_a_conversation(services: InnerServices) -> None:
    agent = await services.make_agent()
    request = pb.CompactConversationRequest(
        agent_id=agent.id, conversation_id=new_id("conversation")
    )
    with pytest.raises(NotFoundError) as missing:
        await services.agents.CompactConversation(request)
    assert missing.value.reason is Reason.CONVERSATION_NOT_FOUND


async def test_turns_continue_during_a_manual_compaction(services: InnerServices) -> None:
    agent = await talked(services)
    thinking, released = asyncio.Event(), asyncio.Event()

    async def meanwhile(call: ModelCall) -> None:
        if "tools" in call.body:
            thinking.set()
            await released.wait()

    services.model.meanwhile = meanwhile
    services.model.respond(lambda call: say("Fine." if "tools" in call.body else "- Before."))
    turn = asyncio.create_task(services.run(agent, "Go on."))
    await thinking.wait()
    done = await compact(services, agent)
    released.set()
    ran = await turn
    services.model.meanwhile = services.model._responder = None

    assert done.HasField("summary")
    assert ran.text == "Fine."
    window = await services.window(agent)
    assert window.messages[1] == done.summary
    assert [text(m) for m in window.messages[-2:]] == ["Go on.", "Fine."]


async def test_pinned_messages_stay_in_the_window(services: InnerServices) -> None:
    agent = await talked(services, model={"handle": "test/test-model", "context_window": 4096})
    first = (await services.window(agent)).messages[1]
    await services.messages.PinMessage(message_pb.PinMessageRequest(message_id=first.id))
    services.model.respond(lambda call: say("z" * 900 if "tools" in call.body else "- Talk."))
    for number in range(12):
        ran = await services.run(agent, f"More {number} " + "w" * 900)
        assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    window = await services.window(agent)
    assert roles(window.messages)[:3] == ["system", "summary", "user"]
    assert (window.messages[2].id, window.messages[2].pinned) == (first.id, True)

    await services.messages.UnpinMessage(message_pb.UnpinMessageRequest(message_id=first.id))
    for number in range(12):
        await services.run(agent, f"More {number} " + "w" * 900)
    assert first.id not in [m.id for m in (await services.window(agent)).messages]
    services.model._responder = None


def text(message: message_pb2.Message) -> str:
    return "".join(part.text.text for part in message.parts)
