"""Replies and errors of the scripted model of the loop."""

from __future__ import annotations

from strata.agent_loop.domain.model.chat import FinishReason, ModelReply, TextPart, ToolCall
from strata.protocol.errors import StrataError
from strata.shared.usage import Usage

USAGE = Usage(prompt_tokens=10, completion_tokens=5)


def lost(error: StrataError) -> StrataError:
    """Marks an error as that of a call without an answer."""
    error.lost = True
    return error


def reply(text: str, *calls: ToolCall, finish: FinishReason | None = None) -> ModelReply:
    """A reply."""
    reason = finish or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP)
    return ModelReply((TextPart(text),) if text else (), calls, reason, USAGE, "model")
