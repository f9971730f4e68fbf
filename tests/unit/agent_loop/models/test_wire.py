"""Any conversation becomes a legal request, judged by the strict rules of the doubles."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from doubles import anthropic_dialect, openai_dialect
from strata.agent_loop.models import anthropic_wire, openai_wire
from strata.agent_loop.models.domain import (
    ChatMessage,
    EndpointType,
    ModelRequest,
    ModelSettings,
    ReasoningPart,
    Role,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSchema,
)
from strata.agent_loop.models.structured_prompt import render
from strata.agent_loop.models.wire import CALL_ID_LIMIT, MISSING_RETURN, legal_arguments, repair

IDS = st.sampled_from(["call_0", "call_0", "toolu:ü", "", "x" * 29 + "1", "x" * 29 + "2"])
TEXTS = st.sampled_from(["", "  ", "hello", "\ud800", "ünï\x00", '{"a": 1}'])
ARGUMENTS = st.sampled_from(["{}", '{"a": [1]}', "", "null", "[1]", '{"a":', '{"a": NaN}'])
CALLS = st.builds(ToolCall, IDS, st.sampled_from(["a", "b"]), ARGUMENTS)
THOUGHTS = st.sampled_from(
    [
        ReasoningPart("hm", anthropic_dialect.signature("hm")),
        ReasoningPart("unsigned"),
        ReasoningPart("", redacted="opaque"),
    ]
)


@st.composite
def messages(draw: st.DrawFn) -> ChatMessage:
    role = draw(st.sampled_from(Role))
    content = [TextPart(draw(TEXTS))]
    if role is Role.TOOL:
        return ChatMessage(role, tuple(content), tool_call_id=draw(IDS))
    if role is not Role.ASSISTANT:
        return ChatMessage(role, tuple(content))
    thoughts = draw(st.lists(THOUGHTS, max_size=2))
    calls = draw(st.lists(CALLS, max_size=3))
    return ChatMessage(role, (*thoughts, *content), tuple(calls))


CONVERSATIONS = st.lists(messages(), max_size=12)
TOOLS = [ToolSchema("a", "A.", {"type": "object", "properties": {"x": {"type": "string"}}})]
CHOICES = st.sampled_from(
    [ToolChoice(), ToolChoice.required(), ToolChoice.none(), ToolChoice.named("a")]
)


def settings(kind: EndpointType, thinking: int = 0) -> ModelSettings:
    return ModelSettings("t/m", kind, "claude-haiku-4-5", max_reasoning_tokens=thinking)


@given(CONVERSATIONS)
def test_every_call_is_followed_by_its_return(conversation: Sequence[ChatMessage]) -> None:
    waiting: list[str] = []
    seen: set[str] = set()
    for message in repair(conversation):
        if message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
            continue
        assert not waiting
        waiting = [call.id for call in message.tool_calls]
        assert len(set(waiting)) == len(waiting)
        assert not seen.intersection(waiting)
        assert all(0 < len(call_id) <= CALL_ID_LIMIT for call_id in waiting)
        seen.update(waiting)
    assert not waiting


@given(CONVERSATIONS, CONVERSATIONS)
def test_what_was_sent_stays_the_same_when_messages_are_added(
    before: list[ChatMessage], after: list[ChatMessage]
) -> None:
    """The provider's prompt cache depends on it. Unanswered calls at the end may be answered."""
    first = [m for m in repair(before) if m.role is not Role.TOOL]
    second = [m for m in repair([*before, *after]) if m.role is not Role.TOOL]
    assert second[: len(first)] == first


@given(CONVERSATIONS)
def test_repair_is_stable(conversation: Sequence[ChatMessage]) -> None:
    once = repair(conversation)
    assert repair(once) == once


@given(CONVERSATIONS, CHOICES)
def test_openai_accepts_any_conversation(
    conversation: Sequence[ChatMessage], choice: ToolChoice
) -> None:
    asked = ModelRequest([ChatMessage.user("first"), *conversation], TOOLS, choice)
    for official in (True, False):
        body = openai_wire.build(asked, settings(EndpointType.OPENAI), official=official)
        openai_dialect.check(body)
        str(body).encode()


@given(CONVERSATIONS, CHOICES, st.sampled_from([0, 500, 2000]))
def test_anthropic_accepts_any_conversation(
    conversation: Sequence[ChatMessage], choice: ToolChoice, thinking: int
) -> None:
    asked = ModelRequest(conversation, TOOLS, choice)
    body = anthropic_wire.build(asked, settings(EndpointType.ANTHROPIC, thinking))
    anthropic_dialect.check(body, {"anthropic-version": "2026-10-21"})


@given(CONVERSATIONS, CHOICES)
def test_the_structured_mode_writes_alternating_text(
    conversation: Sequence[ChatMessage], choice: ToolChoice
) -> None:
    rendered = render([ChatMessage.system("s"), ChatMessage.user("u"), *conversation], TOOLS)
    assert rendered[0].role is Role.SYSTEM
    assert {message.role for message in rendered[1:]} <= {Role.USER, Role.ASSISTANT}
    assert not any(message.tool_calls for message in rendered)


def test_a_return_finds_the_latest_call_with_its_id() -> None:
    call = ToolCall("call_0", "a", "{}")
    sent = repair(
        [
            ChatMessage.assistant("", [call]),
            ChatMessage.tool("call_0", "first"),
            ChatMessage.assistant("", [call]),
            ChatMessage.tool("call_0", "second"),
        ]
    )
    assert [m.text for m in sent if m.role is Role.TOOL] == ["first", "second"]
    assert [m.tool_call_id for m in sent if m.role is Role.TOOL] == ["call_0", "call_0_2"]


def test_an_unanswered_call_is_answered_honestly() -> None:
    sent = repair([ChatMessage.assistant("", [ToolCall("1", "a", "{}")])])
    assert sent[-1] == ChatMessage.tool("1", MISSING_RETURN)


def test_valid_arguments_are_sent_as_they_are() -> None:
    assert legal_arguments('{"a":   1}') == '{"a":   1}'
    assert legal_arguments("") == "{}"
    assert legal_arguments("[1]") == '{"invalid_arguments": "[1]"}'


def test_thinking_is_left_out_of_a_loop_that_began_without_it() -> None:
    conversation = [
        ChatMessage.user("u"),
        ChatMessage.assistant("", [ToolCall("1", "a", "{}")]),
        ChatMessage.tool("1", "r"),
    ]
    anthropic = settings(EndpointType.ANTHROPIC, 2000)
    assert "thinking" not in anthropic_wire.build(ModelRequest(conversation), anthropic)
    conversation.append(ChatMessage.user("next"))
    assert "thinking" in anthropic_wire.build(ModelRequest(conversation), anthropic)


def test_which_models_take_a_thinking_budget() -> None:
    old = ["claude-3-7-sonnet-20250219", "claude-sonnet-4-20250514", "claude-haiku-4-5", "kimi-k3"]
    new = ["claude-opus-4-6", "claude-sonnet-5", "claude-opus-5-5", "claude-mythos-preview"]
    assert all(anthropic_wire.takes_thinking_budget(name) for name in old)
    assert not any(anthropic_wire.takes_thinking_budget(name) for name in new)


def test_the_reply_has_room_beside_the_thinking() -> None:
    asked = ModelRequest([ChatMessage.user("u")], max_tokens=100)
    body = anthropic_wire.build(asked, settings(EndpointType.ANTHROPIC, 2000))
    assert body["max_tokens"] == 2100
