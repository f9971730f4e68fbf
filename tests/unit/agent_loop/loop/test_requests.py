"""From the stored window to the request: what is shown, what is left out, what is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.agent_loop.domain.messages import (
    ImagePart,
    Message,
    MessageRole,
    OpaquePart,
    SummaryPart,
    ToolReturn,
    ToolStatus,
)
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.packaging import cut_return, package, return_limit
from strata.agent_loop.loop.requests import build_request, to_chat
from strata.agent_loop.models.domain import ChatMessage, Role, TextPart, ToolCall
from strata.agent_loop.models.tokens import messages_bytes
from strata.shared.clock import ManualClock

NOW = ManualClock().now()
NO_TOOLS = ToolSet(())


def said(role: MessageRole, text: str, **fields: object) -> Message:
    return Message("message-1", role, (TextPart(text),), **fields)  # type: ignore[arg-type]


def called(*ids: str) -> list[Message]:
    calls = tuple(ToolCall(call_id, "f", "{}") for call_id in ids)
    told = tuple(ToolReturn(call_id, "f", ToolStatus.OK, "r" * 40) for call_id in ids)
    return [
        Message("message-1", MessageRole.ASSISTANT, calls),
        Message("message-2", MessageRole.TOOL, told),
    ]


@st.composite
def windows(draw: st.DrawFn) -> list[Message]:
    messages = [said(MessageRole.SYSTEM, "system")]
    for exchange in range(draw(st.integers(1, 6))):
        sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=2))
        messages += [said(MessageRole.USER, "u" * size) for size in sizes]
        for step in range(draw(st.integers(0, 3))):
            ids = [f"{exchange}.{step}.{n}" for n in range(draw(st.integers(1, 3)))]
            messages += called(*ids)
        if draw(st.booleans()):
            messages.append(said(MessageRole.ASSISTANT, "a" * draw(st.integers(1, 60))))
    return messages


def answered(messages: list[ChatMessage]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [call.id for call in message.tool_calls]
    assert waiting == []


@settings(deadline=None)
@given(windows(), st.integers(0, 800))
def test_whatever_is_left_out_pairs_stay_whole_and_the_newest_stays(
    window: list[Message], budget: int
) -> None:
    fitted = build_request(window, NO_TOOLS, return_limit=5000, max_bytes=budget)
    shown = list(fitted.request.messages)

    assert shown[0].text == "system"
    answered(shown)
    newest = [m.text for m in window if m.role is MessageRole.USER][-1]
    assert newest in [m.text for m in shown if m.role is Role.USER]
    assert shown[1].role is Role.USER
    whole = [chat for message in window for chat in to_chat(message, 5000)]
    assert shown[-1] == whole[-1]
    assert fitted.size == messages_bytes(shown)
    assert fitted.size <= budget or fitted.minimal
    assert fitted.evictable <= fitted.left_out
    evicted, kept = window[1 : 1 + fitted.evictable], window[1 + fitted.evictable :]
    answered([chat for message in evicted for chat in to_chat(message, 5000)])
    assert kept[0].role is MessageRole.USER
    if messages_bytes(whole) <= budget:
        assert shown == whole
        assert fitted.left_out == 0


def test_once_something_goes_there_is_room_for_turns_to_come() -> None:
    window = [said(MessageRole.SYSTEM, "system")]
    for number in range(20):
        window.append(said(MessageRole.USER, f"{number:03}" + "u" * 97))
        window.append(said(MessageRole.ASSISTANT, "a" * 100))
    whole = build_request(window, NO_TOOLS, return_limit=5000, max_bytes=1e9)
    budget = whole.size - 1
    cut = build_request(window, NO_TOOLS, return_limit=5000, max_bytes=budget)
    assert 0.5 * budget < cut.size < 0.75 * budget
    assert cut.evictable == cut.left_out > 2


@settings(deadline=None)
@given(st.text(), st.integers(200, 3000))
def test_cut_returns_stay_json_and_say_how_much_is_missing(text: str, limit: int) -> None:
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


def test_roles_names_summaries_images_and_unknown_parts() -> None:
    assert to_chat(said(MessageRole.USER, "Hi.", name="Ada"), 100)[0].text == "Ada: Hi."
    summary = Message("message-1", MessageRole.SUMMARY, (SummaryPart("Before."),))
    assert to_chat(summary, 100) == [ChatMessage.user("Before.")]
    image = Message("message-1", MessageRole.USER, (ImagePart("image/png", data=b"x"),))
    assert to_chat(image, 100)[0].text == "[image: image/png, not shown]"
    assert to_chat(Message("message-1", MessageRole.APPROVAL, (OpaquePart(b""),)), 100) == []
    assert to_chat(Message("message-1", MessageRole.USER, (OpaquePart(b""),)), 100) == []
