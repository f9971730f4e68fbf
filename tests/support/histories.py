"""Hypothesis strategies for the conversations that a window may hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from strata.agent_loop.context.packaging import package
from strata.agent_loop.domain.conversation.messages import (
    Message,
    OpaquePart,
    SummaryPart,
    ToolReturn,
)
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from strata.api.common.v1 import message_pb2 as pb
from strata.shared.messages import MessageRole, ToolStatus

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
_TEXTS = st.sampled_from(["a", "word ", "日本", "é", '"\\\n', "x1"])


def texts(most: int) -> st.SearchStrategy[str]:
    """Returns texts of up to `most` repetitions; long ones are cheap to draw."""
    return st.builds(lambda piece, count: (piece * count) or "-", _TEXTS, st.integers(1, most))


@st.composite
def histories(draw: st.DrawFn, *, most: int = 400, huge: int = 12_000) -> list[Message]:
    """Draws a window: the system message, sometimes a summary, exchanges of every shape.

    Args:
        draw: The draw function of hypothesis.
        most: Maximum number of repetitions in a text.
        huge: Maximum number of repetitions in a tool return.
    """
    count = itertools.count()
    messages: list[Message] = []

    def add(role: MessageRole, *parts: object, **fields: object) -> None:
        number = next(count)
        messages.append(
            Message(
                f"message-{number:04}",
                role,
                parts,  # type: ignore[arg-type]
                sequence=number,
                create_time=START + timedelta(minutes=number),
                pinned=draw(st.integers(0, 11)) == 0 and role not in _NEVER_PINNED,
                **fields,  # type: ignore[arg-type]
            )
        )

    add(MessageRole.SYSTEM, TextPart("You remember."))
    if draw(st.booleans()):
        for _ in range(draw(st.integers(1, 3))):
            next(count)
        text = draw(texts(most))
        add(MessageRole.SUMMARY, SummaryPart(text, 1, 3, 3, "message-0001", "message-0003"))
    if draw(st.booleans()):
        add(MessageRole.ASSISTANT, TextPart("Boot sequence complete."))
    for _ in range(draw(st.integers(1, 7))):
        for role in draw(_INPUTS):
            add(role, TextPart(draw(texts(most))))
        for _ in range(draw(st.integers(0, 3))):
            _step(draw, add, count, most, huge)
        if draw(st.booleans()):
            add(MessageRole.ASSISTANT, TextPart(draw(texts(most))))
    if draw(st.booleans()):
        add(MessageRole.USER, TextPart(draw(texts(most))))
    return _Shown(messages)


class _Shown(list[Message]):
    """A window with a short representation in the output of hypothesis."""

    def __repr__(self) -> str:
        shown = (
            f"{message.id[-4:]} {message.role.value}{' pinned' * message.pinned}"
            f" {[part.__class__.__name__ for part in message.parts]} {len(str(message.parts))}"
            for message in self
        )
        return f"[{'; '.join(shown)}]"


_NEVER_PINNED = frozenset({MessageRole.SYSTEM, MessageRole.SUMMARY})
_INPUTS = st.lists(
    st.sampled_from([MessageRole.USER, MessageRole.USER, MessageRole.SYSTEM]),
    min_size=1,
    max_size=3,
).filter(lambda roles: MessageRole.USER in roles)


def _step(
    draw: st.DrawFn, add: Callable[..., None], count: itertools.count[int], most: int, huge: int
) -> None:
    ids = [f"call-{next(count):04}" for _ in range(draw(st.integers(1, 3)))]
    thoughts = [ReasoningPart("hm", "signed")] if draw(st.booleans()) else []
    calls = [ToolCall(call_id, "tool", f'{{"a": "{"z" * 20}"}}') for call_id in ids]
    add(MessageRole.ASSISTANT, *thoughts, *calls)
    if draw(st.integers(0, 4)) == 0:
        add(MessageRole.APPROVAL, _approval(calls))
    contents = [draw(texts(huge if draw(st.integers(0, 3)) == 0 else most)) for _ in ids]
    returns = [
        ToolReturn(call_id, "tool", ToolStatus.OK, package(ToolStatus.OK, text, START, "UTC"))
        for call_id, text in zip(ids, contents, strict=True)
    ]
    if len(returns) > 1 and draw(st.booleans()):
        add(MessageRole.TOOL, *returns[:1])
        add(MessageRole.TOOL, *returns[1:])
    else:
        add(MessageRole.TOOL, *returns)


def _approval(calls: Sequence[ToolCall]) -> OpaquePart:
    """Returns an approval request as an opaque part."""
    asked = [pb.ToolCallPart(tool_call_id=c.id, name=c.name, arguments=c.arguments) for c in calls]
    request = pb.ApprovalRequestPart(approval_id=f"approval-{calls[0].id}", tool_calls=asked)
    return OpaquePart(pb.Part(approval_request=request).SerializeToString())


def assert_answered(shown: Sequence[ChatMessage]) -> None:
    """Asserts that each call is directly followed by its return, and no return lacks its call."""
    waiting: list[str] = []
    for message in shown:
        if message.role is ChatRole.TOOL:
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [call.id for call in message.tool_calls]
    assert waiting == []


def unpinned(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages without pins."""
    return [replace(message, pinned=False) for message in messages]
