"""Model requests for stored windows: what is shown, left out and truncated."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histories import assert_answered, histories
from strata.agent_loop.context.packaging import (
    MAX_STEP_RETURN_BYTES,
    bounded_returns,
    cut_return,
    package,
    return_limit,
)
from strata.agent_loop.context.requests import (
    BLIND_MODEL,
    MIN_PIECE_BYTES,
    NO_SPACE_FOR_IMAGE,
    TOO_MANY_IMAGES,
    FittedRequest,
    Offer,
    View,
    _piece_sizes,
    build_request,
)
from strata.agent_loop.domain.conversation.messages import (
    Message,
    OpaquePart,
    SummaryPart,
    ToolReturn,
)
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    ImagePart,
    ReasoningPart,
    ShownImage,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.tokens import messages_bytes
from strata.shared.clock import ManualClock
from strata.shared.messages import MessageRole, ToolStatus

NOW = ManualClock().now()
NO_TOOLS = ToolSet(())
VIEW = View(5000)


def text_message(role: MessageRole, text: str, **fields: object) -> Message:
    return Message("message-1", role, (TextPart(text),), **fields)  # type: ignore[arg-type]


def called(*ids: str) -> list[Message]:
    calls = tuple(ToolCall(call_id, "f", "{}") for call_id in ids)
    tool_returns = tuple(ToolReturn(call_id, "f", ToolStatus.OK, "r" * 40) for call_id in ids)
    return [
        Message("message-1", MessageRole.ASSISTANT, calls),
        Message("message-2", MessageRole.TOOL, tool_returns),
    ]


@settings(deadline=None, max_examples=50)
@given(histories(), st.integers(0, 60_000))
def test_shortened_request_keeps_pairs_and_the_newest_messages(
    window: list[Message], budget: int
) -> None:
    fitted = build_request(window, Offer(NO_TOOLS), VIEW, max_bytes=budget)
    shown = list(fitted.request.messages)
    whole = VIEW.chats(window)

    assert fitted.whole_size == messages_bytes(whole)
    assert fitted.size == messages_bytes(shown)
    assert shown[0].text == "You remember."
    assert_answered(shown)
    if fitted.whole_size <= budget:
        assert shown == whole
        assert fitted.left_out == 0
        return
    newest = [m for m in window if m.role is MessageRole.USER][-1]
    for message in (newest, *(m for m in window if m.pinned and m.role is MessageRole.USER)):
        assert any(_shows(chat, message) for chat in shown)
    smallest = max((size for chat in shown[1:] for size in _piece_sizes(chat)), default=0)
    assert fitted.size <= budget or smallest <= MIN_PIECE_BYTES + 120


def _shows(chat: ChatMessage, message: Message) -> bool:
    """Returns whether a message is shown, complete or truncated."""
    kept = chat.text.partition("... [truncated")[0]
    return chat.role is ChatRole.USER and bool(chat.text) and message.text.startswith(kept)


def test_longest_texts_are_truncated_if_compaction_is_not_enough() -> None:
    long = text_message(MessageRole.USER, "u" * 50_000)
    call, return_message = called("1")
    window = [text_message(MessageRole.SYSTEM, "system"), long, call, return_message]
    fitted = build_request(window, Offer(NO_TOOLS), VIEW, max_bytes=4000)

    assert fitted.size <= 4000
    assert fitted.left_out == 0
    _, question, *_, answer = fitted.request.messages
    assert question.text.startswith("uuuu")
    kept = question.text.partition("...")[0]
    assert question.text.endswith(f"[truncated {50_000 - len(kept)} chars]")
    assert answer.text == "r" * 40


def test_arguments_that_are_cut_stay_json() -> None:
    call = ToolCall("1", "f", json.dumps({"text": "a" * 30_000}))
    tool_return = ToolReturn(
        "1", "f", ToolStatus.OK, package(ToolStatus.OK, "r" * 30_000, NOW, "UTC")
    )
    window = [
        text_message(MessageRole.SYSTEM, "system"),
        text_message(MessageRole.USER, "Go."),
        Message("message-1", MessageRole.ASSISTANT, (ReasoningPart("x" * 9000, "s"), call)),
        Message("message-2", MessageRole.TOOL, (tool_return,)),
    ]
    fitted = build_request(window, Offer(NO_TOOLS), VIEW, max_bytes=3000)

    assert fitted.size <= 3000
    assert set(json.loads(fitted.request.messages[2].tool_calls[0].arguments)) == {"truncated"}
    assert "[truncated" in json.loads(fitted.request.messages[3].text)["message"]


@settings(deadline=None)
@given(st.text(), st.integers(200, 3000))
def test_truncated_returns_stay_json_and_state_the_omitted_size(text: str, limit: int) -> None:
    content = package(ToolStatus.OK, text, NOW, "UTC")
    cut = cut_return(content, limit)

    body = json.loads(cut)
    assert (body["status"], body["time"]) == ("OK", "2026-01-01 12:00:00 AM UTC+0000")
    if len(content) <= limit:
        assert cut == content
    else:
        assert len(cut) <= limit + 64
        kept, _, rest = body["message"].rpartition("... [truncated ")
        assert text.startswith(kept)
        assert rest == f"{len(text) - len(kept)} chars]"


def test_long_object_is_cut_as_text() -> None:
    content = package(ToolStatus.OK, {"rows": ["x" * 100] * 100}, NOW, "UTC")
    body = json.loads(cut_return(content, 1000))
    assert body["message"].startswith('{"rows": ["xxx')
    assert "[truncated" in body["message"]


@pytest.mark.parametrize(("window", "limit"), [(4096, 5000), (8000, 6400), (32000, 25600)])
def test_limit_of_a_return_grows_with_the_window(window: int, limit: int) -> None:
    assert return_limit(window) == limit


def test_names_images_and_unknown_parts_are_converted() -> None:
    assert VIEW.chat(text_message(MessageRole.USER, "Hi.", name="Ada"))[0].text == "Ada: Hi."
    image = ImagePart("image/png", "id", 640, 480, 9, alt_text="A cat.")
    message = Message("message-1", MessageRole.USER, (image,))
    assert VIEW.chat(message)[0].images == (ShownImage(image, round(425 * 3.2)),)
    blind = replace(VIEW, without_images=BLIND_MODEL)
    assert blind.chat(message)[0].text == (
        "[Image omitted (image/png, 640 x 480 pixels): this model is not shown images."
        " Description: A cat.]"
    )
    assert VIEW.chat(Message("message-1", MessageRole.APPROVAL, (OpaquePart(b""),))) == ()
    (unknown,) = VIEW.chat(Message("message-1", MessageRole.USER, (OpaquePart(b""),)))
    assert (unknown.role, unknown.content) == (ChatRole.USER, ())


def test_a_summary_is_shown_as_the_packed_alert_of_the_specification() -> None:
    made = datetime(2026, 1, 20, 22, 13, 45, tzinfo=UTC)
    summary = Message(
        "message-1", MessageRole.SUMMARY, (SummaryPart('She said "no".'),), create_time=made
    )
    (shown,) = View(5000, "America/Los_Angeles").chat(summary)

    assert shown.role is ChatRole.USER
    assert shown.text == (
        '{"type": "system_alert", "message": "Note: prior messages have been hidden from view'
        " due to conversation memory constraints.\\nThe following is a summary of the previous"
        ' messages:\\n She said \\"no\\".", "time": "2026-01-20 02:13:45 PM PST-0800"}'
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["x", "ä", "\n", '"'])), max_size=40))
def test_returns_of_a_step_fit_into_one_message(shapes: list[tuple[int, str]]) -> None:
    returns = [
        ToolReturn(
            f"call_{number}",
            "t",
            ToolStatus.OK,
            package(ToolStatus.OK, character * (size * 10_000), NOW, "UTC"),
        )
        for number, (size, character) in enumerate(shapes)
    ]
    kept = bounded_returns(returns)
    sizes = [len(part.content.encode()) for part in returns]
    assert sum(len(part.content.encode()) for part in kept) <= MAX_STEP_RETURN_BYTES
    if sum(sizes) <= MAX_STEP_RETURN_BYTES:
        assert kept == tuple(returns)
    for part, size, before in zip(kept, sizes, returns, strict=True):
        assert json.loads(part.content)["status"] == "OK"
        if size <= MAX_STEP_RETURN_BYTES // len(returns):
            assert part == before


def pictures(count: int, size: int = 100, *, pixels: int = 100) -> list[Message]:
    """Returns a window in which each message of the user has an image and a reply."""
    window = [text_message(MessageRole.SYSTEM, "s")]
    for number in range(count):
        image = ImagePart("image/png", f"id-{number}", pixels, pixels, size)
        parts = (TextPart(f"look {number}"), image)
        window.append(Message(f"message-{number}", MessageRole.USER, parts))
        window.append(text_message(MessageRole.ASSISTANT, "seen"))
    return window


def shown_ids(fitted: FittedRequest) -> list[str]:
    return [part.image.image_id for m in fitted.request.messages for part in m.images]


@pytest.mark.parametrize(
    ("count", "size", "kept"), [(3, 100, 3), (23, 100, 20), (5, 4 << 20, 3), (1, 100, 1)]
)
def test_newest_images_are_shown_up_to_the_limits_of_providers(
    count: int, size: int, kept: int
) -> None:
    fitted = build_request(pictures(count, size), Offer(NO_TOOLS), VIEW, max_bytes=1e9)
    assert shown_ids(fitted) == [f"id-{number}" for number in range(count - kept, count)]
    texts = [message.text for message in fitted.request.messages]
    assert sum(TOO_MANY_IMAGES in text for text in texts) == count - kept
    assert all(any(f"look {n}" in text for text in texts) for n in range(count))


def test_image_that_does_not_fit_becomes_a_text_and_not_an_error() -> None:
    window = pictures(1, pixels=8000)[:-1]
    fitted = build_request(window, Offer(NO_TOOLS), VIEW, max_bytes=500)
    assert shown_ids(fitted) == []
    assert NO_SPACE_FOR_IMAGE in fitted.request.messages[-1].text
    assert fitted.size <= 500


@given(st.integers(0, 30), st.integers(1, 4 << 20), st.integers(100, 100_000))
def test_size_of_a_request_counts_its_images(count: int, size: int, max_bytes: int) -> None:
    fitted = build_request(pictures(count, size), Offer(NO_TOOLS), VIEW, max_bytes=max_bytes)
    assert fitted.size == messages_bytes(fitted.request.messages)
    assert len(shown_ids(fitted)) <= 20


def test_images_of_a_tool_follow_its_text() -> None:
    image = ImagePart("image/png", "id", 10, 10, 9)
    tool_return = ToolReturn("call", "look", ToolStatus.OK, "{}", images=(image,))
    (chat,) = VIEW.chat(Message("message-1", MessageRole.TOOL, (tool_return,)))
    assert (chat.tool_call_id, chat.text) == ("call", "{}")
    assert [part.image for part in chat.images] == [image]
