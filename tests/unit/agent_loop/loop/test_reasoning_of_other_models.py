"""Reasoning is sent back only to the model that wrote it."""

from __future__ import annotations

from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import ReasoningPart, TextPart, ToolCall
from strata.shared.messages import MessageRole

SIGNED = ReasoningPart("Let me see.", signature="signed")
CALL = ToolCall("call-1", "search", "{}")


def reply(model: str) -> Message:
    return Message(
        id="message-1",
        role=MessageRole.ASSISTANT,
        parts=(SIGNED, TextPart("One moment."), CALL),
        conversation_id="conversation-1",
        agent_id="agent-1",
        model=model,
    )


def test_own_reasoning_is_shown() -> None:
    [shown] = View(100, model="claude/one").chat(reply("claude/one"))
    assert shown.content == (SIGNED, TextPart("One moment."))


def test_reasoning_of_another_model_is_omitted_and_its_calls_are_kept() -> None:
    [shown] = View(100, model="other/two").chat(reply("claude/one"))
    assert shown.content == (TextPart("One moment."),)
    assert shown.tool_calls == (CALL,)


def test_reasoning_of_a_message_that_names_no_model_is_shown() -> None:
    [shown] = View(100, model="other/two").chat(reply(""))
    assert SIGNED in shown.content
