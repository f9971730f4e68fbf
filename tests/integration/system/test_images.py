"""Images through the whole system, in both dialects."""

from __future__ import annotations

from typing import Any

import pytest

from chat_messages import roles
from doubles.script import Fault, ModelCall, Step, say
from image_samples import encoded, padded, png
from run_events import RunEvents, RunStream
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.client.images import image, user_message
from strata.protocol.errors import InvalidArgumentError, NotFoundError, Reason
from strata.protocol.images import MAX_IMAGE_BYTES, MAX_IMAGES, image_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODELS = ["openai/test-model", "anthropic/test-model"]
PHOTO = encoded("JPEG", 64, 48)


async def send(
    system: System, agent: agent_pb.Agent, *messages: message_pb2.MessageInput, **fields: Any
) -> RunEvents:
    request = run_pb.SendMessageRequest(agent_id=agent.id, messages=messages, **fields)
    return await RunStream(system.runs.SendMessage(request)).rest()


def raw(**fields: Any) -> message_pb2.Part:
    """Returns an unchecked image part."""
    return message_pb2.Part(image=message_pb2.ImagePart(**fields))


async def load(system: System, data: bytes) -> message_pb.GetImageResponse:
    return await system.messages.GetImage(message_pb.GetImageRequest(image_id=image_id(data)))


@pytest.mark.parametrize("model", MODELS)
async def test_image_is_seen_now_and_in_later_turns_and_stored_apart(
    system: System, model: str
) -> None:
    agent = await system.make_agent(model)
    system.model.script(say("A red field."), say("Still red."))
    ran = await send(system, agent, user_message("What is this?", [image(PHOTO, alt_text="Red.")]))
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    await system.send(agent, "And now?")
    assert [request.images for request in system.model.requests] == [[("image/jpeg", PHOTO)]] * 2

    stored = (await system.log(agent))[1].parts[1].image
    assert stored.WhichOneof("source") is None
    assert (stored.media_type, stored.width, stored.height) == ("image/jpeg", 64, 48)
    assert (stored.size_bytes, stored.alt_text) == (len(PHOTO), "Red.")
    loaded = await load(system, PHOTO)
    assert (loaded.media_type, loaded.data) == ("image/jpeg", PHOTO)


async def test_a_turn_after_an_image_costs_no_additional_call(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("A dot."), say("Yes."), say("Yes."))
    await send(system, agent, user_message("Look.", [png()]))
    await system.send(agent, "Sure?")
    async with system.measure() as shown:
        await system.send(agent, "Sure?")
    plain_agent = await system.make_agent()
    system.model.script(*[say("Yes.")] * 3)
    for _ in range(2):
        await system.send(plain_agent, "Sure?")
    async with system.measure() as plain:
        await system.send(plain_agent, "Sure?")
    assert shown.internal == plain.internal
    assert not [statement for _, statement in shown.statements if "images" in statement]
    assert system.model.requests[2].images == [("image/png", png())]


async def test_events_and_listings_contain_no_bytes_of_images(system: System) -> None:
    agent = await system.make_agent()
    large = padded(png(), 1 << 20)
    system.model.script(say("A dot."))
    ran = await send(system, agent, user_message("", [large]))
    assert sum(event.ByteSize() for event in ran.events) < 100_000
    assert sum(message.ByteSize() for message in await system.log(agent)) < 100_000
    assert (await load(system, large)).data == large


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (user_message("Hi.", [raw(data=b"no image")]), "parts[1].image.data"),
        (user_message("Hi.", [raw()]), "parts[1].image"),
        (user_message("Hi.", [raw(url="http://a.b/c")]), "parts[1].image.url"),
        (user_message("Hi.", [raw(url="https://u:p@a.b/")]), "parts[1].image.url"),
        (user_message("", [raw(data=png(), media_type="image/gif")]), "parts[0].image.data"),
        (user_message("", [raw(data=padded(png(), MAX_IMAGE_BYTES + 1))]), "parts[0].image.data"),
        (
            user_message("", [raw(url="https://a.b/c", media_type="a\0b")]),
            "parts[0].image.media_type",
        ),
        (
            message_pb2.MessageInput(role=message_pb2.ROLE_ASSISTANT, parts=[image(png())]),
            "parts[0]",
        ),
    ],
    ids=[
        "no image",
        "no source",
        "http",
        "credentials",
        "another type",
        "too large",
        "type of url",
        "role",
    ],
)
async def test_an_invalid_image_is_refused_by_field(
    system: System, message: message_pb2.MessageInput, field: str
) -> None:
    agent = await system.make_agent()
    with pytest.raises(InvalidArgumentError) as raised:
        await send(system, agent, message)
    assert [violation.field for violation in raised.value.violations] == [f"messages[0].{field}"]
    assert roles(await system.log(agent)) == ["system"]


async def test_more_images_than_a_request_may_have_are_refused(system: System) -> None:
    agent = await system.make_agent()
    with pytest.raises(InvalidArgumentError, match="at most 20 images, not 22"):
        await send(system, agent, *[user_message("", [png()] * 11)] * 2)


async def test_largest_image_passes_through_every_service(system: System) -> None:
    agent = await system.make_agent()
    large = padded(png(shade=7), MAX_IMAGE_BYTES)
    system.model.script(say("A dot."))
    ran = await send(system, agent, user_message("Look.", [large]))
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert system.model.requests[-1].images == [("image/png", large)]
    assert (await load(system, large)).data == large


@pytest.mark.parametrize("model", MODELS)
async def test_provider_that_refuses_an_image_does_not_end_the_conversation(
    system: System, model: str
) -> None:
    agent = await system.make_agent(model)

    def blind(request: ModelCall) -> Step:
        if request.images:
            return Fault(400, "Could not process image", "invalid_request_error")
        return say("I cannot see it.")

    system.model.respond(blind)
    ran = await send(system, agent, user_message("What is this?", [png()]))
    assert ran.text == "I cannot see it."
    (restarted,) = [e.step_restarted for e in ran.events if e.HasField("step_restarted")]
    assert "Could not process image" in restarted.reason
    assert (await system.send(agent, "Never mind.")).text == "I cannot see it."


async def test_image_counts_in_the_context_window(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("A dot."))
    inspect = agent_pb.GetContextWindowRequest(agent_id=agent.id)
    before = (await system.agents.GetContextWindow(inspect)).used_tokens
    await send(system, agent, user_message("", [png(2000, 2000)]))
    used = (await system.agents.GetContextWindow(inspect)).used_tokens
    assert used - before > 500


async def test_images_that_are_not_shown_do_not_count_in_the_context_window(
    system: System,
) -> None:
    agent = await system.make_agent()
    system.model.respond(lambda _: say("A dot."))
    for turn in range(5):
        shades = range(20 * turn, 20 * turn + 20)
        await send(system, agent, user_message("", [png(600, 600, shade) for shade in shades]))
    assert len(system.model.requests[-1].images) == MAX_IMAGES
    window = await system.agents.GetContextWindow(
        agent_pb.GetContextWindowRequest(agent_id=agent.id)
    )
    assert sum(part.tokens for part in window.parts if part.name == "messages") < 20_000
    assert window.used_tokens < window.compaction_tokens
    assert not window.compaction_due


async def test_fork_shows_the_images_that_were_in_view(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("A dot."), say("The same dot."))
    data = png(4, 4, shade=11)
    await send(system, agent, user_message("Look.", [data]))
    request = agent_pb.ForkConversationRequest(conversation_id=agent.default_conversation_id)
    fork = (await system.agents.ForkConversation(request)).conversation
    ran = await send(system, agent, user_message("Again?"), conversation_id=fork.id)
    assert ran.text == "The same dot."
    assert system.model.requests[-1].images == [("image/png", data)]


async def test_compaction_names_images_and_no_longer_shows_them(system: System) -> None:
    agent = await system.make_agent(compaction={"mode": "all"})
    replies = ["A cat.", *["x" * 400] * 3, "- They looked at a cat.", "A cat."]
    system.model.script(*map(say, replies))
    await send(system, agent, user_message("Look.", [image(png(shade=3), alt_text="A cat.")]))
    for number in range(3):
        await system.send(agent, f"Question {number} " + "y" * 400)
    await system.agents.CompactConversation(agent_pb.CompactConversationRequest(agent_id=agent.id))
    summarised = system.model.requests[-1]
    assert "[image: A cat.]" in str(summarised.body)
    assert summarised.images == []
    ran = await system.send(agent, "What did I show you?")
    assert ran.text == "A cat."
    assert system.model.requests[-1].images == []
    assert (await load(system, png(shade=3))).data == png(shade=3)


async def test_message_is_found_by_the_content_of_its_image(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("Nice."))
    shown = image(png(), alt_text="A lighthouse at dusk.")
    await send(system, agent, user_message("Look.", [shown]))
    response = await system.messages.SearchMessages(
        message_pb.SearchMessagesRequest(
            agent_id=agent.id, query="lighthouse", mode=message_pb.SEARCH_MODE_FULL_TEXT
        )
    )
    assert [hit.message.parts[1].image.alt_text for hit in response.hits] == [
        "A lighthouse at dusk."
    ]


async def test_image_is_deleted_with_its_agent(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("A dot."))
    data = png(9, 9, shade=99)
    await send(system, agent, user_message("Look.", [data]))
    await load(system, data)
    await system.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    with pytest.raises(NotFoundError) as raised:
        await load(system, data)
    assert raised.value.reason is Reason.IMAGE_NOT_FOUND
    with pytest.raises(InvalidArgumentError):
        await system.messages.GetImage(message_pb.GetImageRequest(image_id="../../x"))


async def test_taint_of_a_message_with_an_image_is_kept(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("A page."))
    message = user_message("A page that I photographed.", [png()])
    message.taint.append(message_pb2.PROVENANCE_WEB)
    ran = await send(system, agent, message)
    assert list(ran.finished.taint) == [message_pb2.PROVENANCE_WEB]
