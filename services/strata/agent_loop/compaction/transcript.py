"""Builds the transcript for the summarizer, and the extract that needs no model. Pure.

Each line of a transcript is one JSON object, so that no text can fake a line of another speaker
(docs/wire-format.md#what-the-summarizer-reads).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from strata.agent_loop.domain.conversation.messages import Message, SummaryPart, ToolReturn
from strata.agent_loop.domain.model.chat import ImagePart, TextPart, ToolCall
from strata.agent_loop.prompts.system_message import format_time
from strata.protocol.images import image_text
from strata.shared.messages import MessageRole
from strata.shared.one_line import escaped
from strata.shared.replies import sent_text
from strata.shared.tool_returns import result_of

CLIP_MARK = "... [summary truncated to fit]"
PIECE_CHARS = 4_000
"""Characters shown of one text; a summary needs no more of a long paste."""
RETURN_CHARS = 1_500
"""Characters shown of one tool return or of the arguments of a call."""

_EARLIER_SHARE = 0.4
_SAID_CHARS, _ANSWERED_CHARS = 200, 120
_EXTRACT_HEAD = "No model could be asked for this summary; these are excerpts of {} messages{}."
_EXTRACT_TAIL = "Search recall memory for what is not here."


def lines(messages: Sequence[Message], timezone: str) -> list[str]:
    """Returns a transcript: one line per message with text or calls, and one per tool return."""
    result: list[str] = []
    for message in messages:
        result += [_json(entry) for entry in _entries(message, timezone)]
    return result


def earlier_lines(earlier: Sequence[SummaryPart]) -> list[str]:
    """Returns earlier summaries as lines of a transcript."""
    return [_json({"role": "summary", "content": part.text}) for part in earlier]


def part_line(number: int, text: str) -> str:
    """Returns the summary of one part of a long transcript as a line."""
    return _json({"role": "summary", "part": number, "content": text})


def clip(text: str, limit: int) -> str:
    """Truncates a summary to `limit` characters, including a note that it was truncated."""
    if len(text) <= limit:
        return text
    if limit <= len(CLIP_MARK):
        return text[:limit]
    return text[: limit - len(CLIP_MARK)].rstrip() + CLIP_MARK


def extract(
    messages: Sequence[Message], earlier: Sequence[SummaryPart], timezone: str, limit: int
) -> str:
    """Returns excerpts of messages, in at most `limit` characters, without asking a model.

    Space goes first to user messages, then to replies, newest first; the excerpts are in the order
    of the conversation. Earlier summaries are truncated.
    """
    head = _EXTRACT_HEAD.format(len(messages), _between(messages, timezone))
    space = limit - len(head) - len(_EXTRACT_TAIL) - 2
    before = "\n".join(part.text for part in earlier)
    if before:
        before = clip(before, max(0, int(space * _EARLIER_SHARE)))
        space -= len(before) + 1
    picked: dict[int, str] = {}
    for role, chars in ((MessageRole.USER, _SAID_CHARS), (MessageRole.ASSISTANT, _ANSWERED_CHARS)):
        for position in range(len(messages) - 1, -1, -1):
            message = messages[position]
            is_included = message.role is role and not message.hidden
            line = _excerpt(message, chars) if is_included else ""
            if line and len(line) + 1 <= space:
                picked[position] = line
                space -= len(line) + 1
    body = [picked[position] for position in sorted(picked)]
    return clip("\n".join(text for text in (before, head, *body, _EXTRACT_TAIL) if text), limit)


def _entries(message: Message, timezone: str) -> list[dict[str, Any]]:
    # An approval request repeats the reply that is stored with the results of its calls.
    if message.hidden or message.role is MessageRole.APPROVAL:
        return []
    if message.role is MessageRole.TOOL:
        return [
            {"role": "tool", "name": tool_return.name, "content": _short(tool_return, RETURN_CHARS)}
            for tool_return in message.tool_returns
        ]
    entry: dict[str, Any] = {"role": message.role.value}
    if message.create_time is not None and message.role is MessageRole.USER:
        entry["time"] = format_time(message.create_time, timezone)
    if message.name:
        entry["name"] = message.name
    text = _text(message)
    if text:
        entry["content"] = _middle_out(text, PIECE_CHARS)
    if message.tool_calls:
        entry["calls"] = [
            {"name": call.name, "arguments": _middle_out(call.arguments, RETURN_CHARS)}
            for call in message.tool_calls
        ]
    return [entry] if text or message.tool_calls else []


def _text(message: Message) -> str:
    texts = []
    for part in message.parts:
        if isinstance(part, TextPart | SummaryPart):
            texts.append(part.text)
        elif isinstance(part, ImagePart):
            texts.append(image_text(part.alt_text))
    return "".join(texts).strip()


def _short(tool_return: ToolReturn, limit: int) -> str:
    return _middle_out(f"{tool_return.status.value}: {result_of(tool_return.content)}", limit)


def _middle_out(text: str, limit: int) -> str:
    """Truncates a text in its middle: beginning and end usually matter most."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def brief(message: Message, chars: int) -> str:
    """Returns at most `chars` characters of the text of a message, on one line.

    Without a text these are the names of the tools that it calls, or what tools returned.
    """
    sent_texts = [sent_text(call.name, call.arguments) or "" for call in message.tool_calls]
    text = " ".join(" ".join([*sent_texts, _text(message)]).split())
    if not text:
        request = message.approval_request
        text = _called(message.tool_calls if request is None else request.calls)
    if not text:
        returns = (f"{part.name}: {_short(part, RETURN_CHARS)}" for part in message.tool_returns)
        text = " ".join(" ".join(returns).split())
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _excerpt(message: Message, chars: int) -> str:
    text = brief(message, chars)
    return f"- {message.name or message.role.value}: {text}" if text else ""


def _called(calls: Sequence[ToolCall]) -> str:
    return f"called {', '.join(call.name for call in calls)}" if calls else ""


def _between(messages: Sequence[Message], timezone: str) -> str:
    times = [message.create_time for message in messages if message.create_time is not None]
    if not times:
        return ""
    first, last = format_time(min(times), timezone), format_time(max(times), timezone)
    return f" from {first}" if first == last else f" from {first} to {last}"


def _json(value: Any) -> str:
    return escaped(json.dumps(value, ensure_ascii=False))
