"""Images in a turn: fetched, stored by id, loaded for the model; failures never block an agent."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_samples import encoded, padded, png
from strata.agent_loop.clients.recall import ImageCache
from strata.agent_loop.context.packaging import limit_images
from strata.agent_loop.context.requests import BLIND_MODEL
from strata.agent_loop.domain.conversation.messages import (
    Message,
    MessageInput,
    MessagePart,
    ToolReturn,
)
from strata.agent_loop.domain.model.chat import ImageDetail, ImagePart, ModelRequest, TextPart
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.run.events import StepRestarted, ToolFinished
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.loop.images import GONE, identified
from strata.protocol.errors import InvalidArgumentError, StrataError, UnavailableError
from strata.protocol.images import MAX_IMAGE_BYTES, image_id
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from unit.agent_loop.loop.in_memory_ports import Sink
from unit.agent_loop.loop.journals import Died
from unit.agent_loop.loop.loop_harness import LoopHarness
from unit.agent_loop.loop.model_replies import reply

URL = "https://pictures.example/cat.png"
REFUSED = ModelError(ModelErrorKind.IMAGES_REFUSED, "Could not process image")


class Web:
    """Images by URL; other URLs are unreachable."""

    def __init__(self, **images: bytes | StrataError) -> None:
        self.images = {URL.replace("cat", name): data for name, data in images.items()}
        self.fetched: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        data = self.images.get(url, UnavailableError("The server answered 404 Not Found."))
        if isinstance(data, StrataError):
            raise data
        return data


def show(harness: LoopHarness, *images: ImagePart, text: str = "Look.") -> RunRequest:
    parts: tuple[MessagePart, ...] = (TextPart(text), *images)
    return replace(harness.request(""), inputs=[MessageInput(MessageRole.USER, parts)])


def sent(*images: bytes, **fields: object) -> list[ImagePart]:
    return [ImagePart("", data=data, **fields) for data in images]  # type: ignore[arg-type]


def shown(request: ModelRequest) -> list[bytes]:
    return [part.image.data for message in request.messages for part in message.images]


def texts(request: ModelRequest) -> str:
    return "\n".join(message.text for message in request.messages)


def ended(sink: Sink) -> StopReason:
    return sink.outcome.stop_reason


async def test_image_is_stored_by_id_and_shown_with_its_bytes_in_every_later_turn() -> None:
    harness = LoopHarness()
    request = show(harness, *sent(png(3, 2), alt_text="A dot.", detail=ImageDetail.LOW))
    await harness.run(request, reply("A dot."))
    stored = harness.recall.messages[1].images[0]
    assert stored == replace(
        identified(sent(png(3, 2))[0]), data=b"", alt_text="A dot.", detail=ImageDetail.LOW
    )
    await harness.run(harness.request("And now?"), reply("Still a dot."))
    assert [shown(request) for request in harness.model.requests] == [[png(3, 2)], [png(3, 2)]]
    assert ended(await harness.run(None, reply("Yes."))) is StopReason.END_TURN


async def test_a_turn_without_images_loads_none() -> None:
    harness = LoopHarness()
    await harness.run(None, harness.calls("reads"), reply("Done."))
    assert harness.recall.loaded == []


async def test_the_source_that_a_client_states_for_sent_bytes_is_not_stored() -> None:
    harness = LoopHarness()
    await harness.run(show(harness, *sent(png(), url="https://bank.example/x")), reply("A dot."))
    message = harness.recall.messages[1]
    assert [image.url for image in message.images] == [""]
    assert message.provenance == (Provenance.USER,)


async def test_image_by_url_is_fetched_once_stored_and_labelled() -> None:
    harness = LoopHarness()
    web = Web(cat=png())
    harness.ports = replace(harness.ports, images=web)
    await harness.run(show(harness, *[ImagePart("", url=URL)] * 2), reply("A cat."))
    assert web.fetched == [URL]
    message = harness.recall.messages[1]
    assert [(i.image_id, i.url) for i in message.images] == [(image_id(png()), URL)] * 2
    assert message.provenance == (Provenance.USER, Provenance.WEB)
    assert shown(harness.model.requests[0]) == [png(), png()]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (UnavailableError("The server answered 404 Not Found."), "answered 404 Not Found"),
        (InvalidArgumentError("The host may not be reached."), "may not be reached"),
        (b"<html>", "is not a PNG, JPEG, GIF or WebP file"),
        (png(9000), "has 9000 x 1 pixels"),
    ],
    ids=["missing", "forbidden", "no image", "too wide"],
)
async def test_image_that_cannot_be_fetched_becomes_a_text_and_the_run_continues(
    answer: bytes | StrataError, reason: str
) -> None:
    harness = LoopHarness()
    harness.ports = replace(harness.ports, images=Web(cat=answer))
    sink = await harness.run(show(harness, ImagePart("", url=URL)), reply("I cannot see it."))
    assert ended(sink) is StopReason.END_TURN
    assert reason in texts(harness.model.requests[0])
    assert "Look." in texts(harness.model.requests[0])
    assert harness.recall.messages[1].provenance == (Provenance.USER,)


async def test_server_without_image_fetching_returns_a_text() -> None:
    harness = LoopHarness()
    await harness.run(show(harness, ImagePart("", url=URL)), reply("I cannot see it."))
    assert f"this server does not fetch images, such as {URL}" in texts(harness.model.requests[0])


async def test_fetched_images_are_stored_up_to_the_limit_for_a_request() -> None:
    harness = LoopHarness()
    images = {f"n{n}": padded(png(shade=n), MAX_IMAGE_BYTES) for n in range(5)}
    web = Web(**images)
    harness.ports = replace(harness.ports, images=web)
    await harness.run(show(harness, *(ImagePart("", url=url) for url in web.images)), reply("Ok."))
    assert len(harness.recall.messages[1].images) == 3
    assert "12,582,912 bytes in all" in texts(harness.model.requests[0])


async def test_few_images_of_a_request_are_fetched_at_once() -> None:
    counts: list[int] = []
    under_way: set[str] = set()

    class CountingWeb(Web):
        async def fetch(self, url: str) -> bytes:
            under_way.add(url)
            counts.append(len(under_way))
            await asyncio.sleep(0)
            under_way.remove(url)
            return await super().fetch(url)

    harness = LoopHarness()
    web = CountingWeb(**{f"n{n}": padded(png(shade=n), 3 << 20) for n in range(20)})
    harness.ports = replace(harness.ports, images=web)
    await harness.run(show(harness, *(ImagePart("", url=url) for url in web.images)), reply("Ok."))
    assert (len(counts), max(counts)) == (20, 5)
    stored = harness.recall.messages[1]
    assert [image.url for image in stored.images] == list(web.images)[:4]
    assert texts(harness.model.requests[0]).count("12,582,912 bytes in all") == 16


async def test_model_that_is_not_shown_images_gets_a_text() -> None:
    harness = LoopHarness()
    harness.models.settings = replace(harness.models.settings, images=False)
    sink = await harness.run(
        show(harness, *sent(png(), alt_text="A dot.")), reply("A dot, you say.")
    )
    assert ended(sink) is StopReason.END_TURN
    assert shown(harness.model.requests[0]) == []
    assert f"{BLIND_MODEL}. Description: A dot.]" in texts(harness.model.requests[0])
    assert harness.recall.loaded == []


@pytest.mark.parametrize("kind", [ModelErrorKind.IMAGES_REFUSED, ModelErrorKind.BAD_REQUEST])
async def test_a_provider_that_refuses_images_is_called_without_them(kind: ModelErrorKind) -> None:
    harness = LoopHarness()
    refused = ModelError(kind, "Could not process it")
    sink = await harness.run(
        show(harness, *sent(png())), refused, harness.calls("reads"), reply("I cannot see it.")
    )
    assert ended(sink) is StopReason.END_TURN
    assert [len(shown(request)) for request in harness.model.requests] == [1, 0, 0]
    (restarted,) = sink.of(StepRestarted)
    assert restarted.reason.endswith("asked without them. Could not process it")
    assert "provider of this model refused it" in texts(harness.model.requests[1])


async def test_only_the_image_that_a_provider_refused_is_left_out_later() -> None:
    harness = LoopHarness()
    good, broken, later = (png(shade=shade) for shade in (1, 2, 3))
    await harness.run(show(harness, *sent(good)), reply("One."))
    sink = await harness.run(show(harness, *sent(broken)), REFUSED, reply("I cannot see it."))
    (restarted,) = sink.of(StepRestarted)
    assert restarted.reason.endswith("asked without these. Could not process image")
    sink = await harness.run(show(harness, *sent(later)), reply("Three."))
    assert ended(sink) is StopReason.END_TURN
    assert [shown(request) for request in harness.model.requests] == [
        [good],
        [good, broken],
        [good],
        [good, later],
    ]
    assert texts(harness.model.requests[-1]).count("provider of this model refused it") == 1


async def test_all_images_are_left_out_if_the_refused_one_is_among_accepted_ones() -> None:
    harness = LoopHarness()
    first, second, later = (png(shade=shade) for shade in (1, 2, 3))
    await harness.run(show(harness, *sent(first)), reply("One."))
    sink = await harness.run(show(harness, *sent(second)), REFUSED, REFUSED, reply("Nothing."))
    assert ended(sink) is StopReason.END_TURN
    assert [len(shown(request)) for request in harness.model.requests] == [1, 2, 1, 0]
    # What it has accepted before is tried again.
    await harness.run(show(harness, *sent(later)), reply("Three."))
    assert shown(harness.model.requests[-1]) == [first, later]


async def test_refusal_for_another_reason_than_images_ends_the_run() -> None:
    harness = LoopHarness()
    sink = await harness.run(None, REFUSED)
    assert ended(sink) is StopReason.LLM_API_ERROR
    assert len(harness.model.requests) == 1
    sink = await harness.run(show(harness, *sent(png())), REFUSED, REFUSED)
    assert ended(sink) is StopReason.LLM_API_ERROR
    assert sink.outcome.failure is not None
    assert sink.outcome.failure.message == "Could not process image"


async def test_an_image_that_is_no_longer_stored_becomes_a_text() -> None:
    harness = LoopHarness()
    await harness.run(show(harness, *sent(png())), reply("A dot."))
    harness.recall.images.clear()
    assert ended(await harness.run(None, reply("Gone."))) is StopReason.END_TURN
    assert GONE in texts(harness.model.requests[-1])


async def test_image_of_a_tool_is_shown_stored_and_not_in_the_events() -> None:
    harness = LoopHarness()
    image = identified(sent(encoded("JPEG", 5, 4))[0])
    harness.tools.images = (image,)
    sink = await harness.run(None, harness.calls("reads", "acts"), reply("A red field."))
    assert shown(harness.model.requests[1]) == [image.data]
    returned = harness.recall.messages[3].tool_returns
    assert [tool_return.images for tool_return in returned] == [(replace(image, data=b""),), ()]
    assert [len(event.result.tool_return.images) for event in sink.of(ToolFinished)] == [1, 0]


@pytest.mark.parametrize("last", range(1, 30))
async def test_images_are_stored_once_and_shown_after_a_crash_at_any_point(last: int) -> None:
    """Images of the user and of the tool are stored once, and shown by the next attempt."""
    harness = LoopHarness()
    drawn = identified(sent(png(4, 4))[0])
    harness.tools.images = (drawn,)
    asked = harness.calls("reads")
    harness.model.replies = [asked, reply("Seen.")]
    request = show(harness, *sent(png()))
    harness.fate.last = last
    try:
        await harness.run(request)
    except Died:
        harness.fate.last = None
        # A reply that was not journalled is requested again.
        asked_again = [] if harness.journal.opened else [asked]
        harness.model.replies = [*asked_again, reply("Seen.")]
        await harness.run(replace(request, attempt=2))
    images = [image for message in harness.recall.messages for image in message.images]
    assert [image.image_id for image in images] == [image_id(png()), drawn.image_id]
    assert shown(harness.model.requests[-1]) == [png(), drawn.data]


async def test_image_whose_bytes_were_never_stored_becomes_a_text() -> None:
    harness = LoopHarness()
    old = Message("message-old", MessageRole.USER, (ImagePart("image/png", url=URL),))
    harness.recall.messages.append(old)
    assert ended(await harness.run(None, reply("Hello."))) is StopReason.END_TURN
    assert GONE in texts(harness.model.requests[0])


def test_images_over_the_limit_of_a_step_are_omitted_by_whole_returns() -> None:
    content = json.dumps({"status": "OK", "message": "Drawn.", "time": "now"})
    image = ImagePart("image/png", "id", 1, 1, 60)
    returns = [
        ToolReturn(call, "draw", ToolStatus.OK, content, images=(image,) * count)
        for call, count in (("a", 1), ("b", 1), ("c", 0), ("d", 1))
    ]
    limited = limit_images(returns, 100)
    assert [len(tool_return.images) for tool_return in limited] == [1, 0, 0, 0]
    messages = [json.loads(tool_return.content)["message"] for tool_return in limited]
    assert messages[0] == messages[2] == "Drawn."
    assert messages[1].startswith("Drawn.\n[1 image(s) omitted")
    assert limit_images(returns, 180) == tuple(returns)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())), st.integers(0, 100))
def test_cache_of_images_never_exceeds_its_limit(uses: list[tuple[int, bool]], limit: int) -> None:
    cache = ImageCache(limit)
    for number, put in uses:
        key = ("project", str(number))
        if put:
            cache.put(key, bytes(number * 5))
            assert cache.get(key) == (bytes(number * 5) if number * 5 <= limit else None)
        held = [cache.get(("project", str(number))) for number in range(10)]
        assert sum(len(data) for data in held if data is not None) <= limit
    assert cache.get(("other", "1")) is None
