"""Repairs stored conversations so that every provider accepts them.

Providers refuse a request for a single call without a return, return without a call, repeated call
id or unpaired surrogate. The store keeps calls and returns together (docs/architecture.md,
invariant 4); this is the last line of defence, and the place where ids get their form on the wire.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    PromptPart,
    TextPart,
    ToolCall,
)
from strata.shared.blank_text import is_blank
from strata.shared.json_text import JsonTextError, encodable, encodable_text, parse_json

# Ids are stored whole and truncated on the wire (docs/wire-format.md#times-and-ids).
CALL_ID_LIMIT = 29
MISSING_RETURN = "No result of this call was recorded."
BLANK_MESSAGE = "[This message is blank.]"
"""Replaces a blank user message, since providers refuse blank text."""

OPENING = "[Earlier messages are not shown.]"
"""First user message of a request that must not begin with an assistant message."""

CONTINUE = "[Continue.]"
"""Last user message of a request that must not end with an assistant message."""

_ILLEGAL_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_SYSTEM_MARK = re.compile(r"<(?=\s{0,8}/?\s{0,8}system\s{0,8}>)", re.IGNORECASE)
_ALPHANUMERIC = string.digits + string.ascii_letters


def repair(messages: Sequence[ChatMessage], call_id_length: int = 0) -> list[ChatMessage]:
    """Returns the messages as a sequence that every provider accepts.

    Each assistant message with calls is directly followed by exactly one return per call, in call
    order. A call without a return gets `MISSING_RETURN`; a return without a call is left out, and
    so are blank messages. A blank user message becomes `BLANK_MESSAGE`: without it the
    request could end with an assistant message, which some providers refuse and others continue.
    Call ids are unique, at most `CALL_ID_LIMIT` characters of [a-zA-Z0-9_-], and stay the same
    while the conversation only grows at its end.

    Args:
        messages: The conversation.
        call_id_length: Length of each call id, letters and digits only; 0 for the form above.
    """
    returns = _match_returns(messages)
    ids = _WireIds(call_id_length)
    repaired: list[ChatMessage] = []
    for position, message in enumerate(messages):
        if message.role is ChatRole.TOOL:
            continue
        if not message.tool_calls:
            content = message.derived(_sent_content, None)
            if content is message.content:
                repaired.append(message)
            elif content is not None:
                repaired.append(replace(message, content=content))
            continue
        wire_ids = tuple([ids.assign(call.id) for call in message.tool_calls])
        repaired.append(message.derived(_with_calls, wire_ids))
        for index, wire_id in enumerate(wire_ids):
            answer = returns.get((position, index))
            if answer is not None:
                repaired.append(answer.derived(_as_return, wire_id))
            else:
                repaired.append(ChatMessage.tool(wire_id, MISSING_RETURN))
    return repaired


def argument_object(arguments: str) -> dict[str, Any] | None:
    """Returns the arguments as an object that can be sent; None if they are not an object.

    Never raises: a stored call with unparsable arguments must not make the conversation
    unusable. Escapes of half a surrogate pair are replaced.
    """
    try:
        value = parse_json(arguments)
    except JsonTextError:
        return None
    return encodable(value) if isinstance(value, dict) else None


def legal_arguments(arguments: str) -> str:
    """Returns arguments that servers can parse: unchanged, or wrapped if they are not an object.

    Local servers render earlier calls through a template that parses them, and respond with 500 to
    the whole conversation if one cannot be parsed.
    """
    value = argument_object(arguments)
    if value is not None:
        # Parsers differ in escapes of surrogates; everything else is sent unchanged.
        halves = "\\ud" in arguments.lower()
        return json.dumps(value, ensure_ascii=False) if halves else arguments
    if not arguments.strip():
        return "{}"
    return json.dumps({"invalid_arguments": arguments}, ensure_ascii=False)


def without_system_role(message: ChatMessage) -> ChatMessage:
    """Returns a message for models that accept no system message within a conversation.

    A system message becomes a user message that is marked with tags. These tags are escaped in the
    text of users, who could otherwise write a message that looks like one of the system.
    """
    if message.role is ChatRole.SYSTEM:
        return ChatMessage.user(f"<system>\n{_escaped_marks(message.text)}\n</system>")
    if message.role is ChatRole.USER and message.derived(_has_marks, None):
        parts = (
            TextPart(_escaped_marks(part.text)) if isinstance(part, TextPart) else part
            for part in message.content
        )
        return replace(message, content=tuple(parts))
    return message


def leading_system(messages: Sequence[ChatMessage]) -> tuple[str, Sequence[ChatMessage]]:
    """Splits off the system text that opens the prompt."""
    count = 0
    while count < len(messages) and messages[count].role is ChatRole.SYSTEM:
        count += 1
    return "\n\n".join(message.text for message in messages[:count]), messages[count:]


def _has_marks(message: ChatMessage, _: None) -> bool:
    return _SYSTEM_MARK.search(message.text) is not None


def _escaped_marks(text: str) -> str:
    return _SYSTEM_MARK.sub("&lt;", text)


def _match_returns(
    messages: Sequence[ChatMessage],
) -> dict[tuple[int, int], ChatMessage]:
    """Finds the return of each call: the first unclaimed return after it with its id.

    Some servers number the calls of each reply from the start ("call_0"), so that ids repeat: the
    latest call without a return wins.
    """
    unanswered: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    matched: dict[tuple[int, int], ChatMessage] = {}
    for position, message in enumerate(messages):
        if message.role is not ChatRole.TOOL:
            # Reversed: if two calls of a message have the same id, the first one is popped first.
            for index in reversed(range(len(message.tool_calls))):
                unanswered[message.tool_calls[index].id].append((position, index))
        elif unanswered[message.tool_call_id or ""]:
            matched[unanswered[message.tool_call_id or ""].pop()] = message
    return matched


def _sent_content(message: ChatMessage, _: None) -> tuple[PromptPart, ...] | None:
    """Returns the content that is sent of a message without calls; None to leave it out."""
    if not message.images and is_blank(message.text):
        return (TextPart(BLANK_MESSAGE),) if message.role is ChatRole.USER else None
    content = _clean_parts(message.content)
    return message.content if content == message.content else content


def _with_calls(message: ChatMessage, wire_ids: tuple[str, ...]) -> ChatMessage:
    """Returns a message with calls as it is sent, with the ids of its calls on the wire."""
    return replace(
        message,
        content=_clean_parts(message.content),
        tool_calls=tuple(
            ToolCall(wire_id, call.name, encodable_text(call.arguments))
            for call, wire_id in zip(message.tool_calls, wire_ids, strict=True)
        ),
    )


def _as_return(message: ChatMessage, wire_id: str) -> ChatMessage:
    """Returns the return of a call as it is sent, with the id of the call on the wire."""
    text = TextPart(encodable_text(message.text))
    return ChatMessage(ChatRole.TOOL, (text, *message.images), (), wire_id)


def _clean_parts(parts: tuple[PromptPart, ...]) -> tuple[PromptPart, ...]:
    # Reasoning is signed: it is sent back unchanged or not at all.
    return tuple(TextPart(encodable_text(p.text)) if isinstance(p, TextPart) else p for p in parts)


class _WireIds:
    """Assigns a unique id to every call of a request."""

    def __init__(self, length: int = 0) -> None:
        self._used_ids: set[str] = set()
        self._length = length

    def assign(self, call_id: str) -> str:
        if self._length:
            return self._assign_exact(call_id)
        base = _ILLEGAL_IN_ID.sub("_", call_id)[:CALL_ID_LIMIT] or "call"
        candidate, number = base, 1
        while candidate in self._used_ids:
            number += 1
            suffix = f"_{number}"
            candidate = base[: CALL_ID_LIMIT - len(suffix)] + suffix
        self._used_ids.add(candidate)
        return candidate

    def _assign_exact(self, call_id: str) -> str:
        fits = len(call_id) == self._length and call_id.isascii() and call_id.isalnum()
        candidate, number = call_id if fits else _digest(call_id, self._length), 1
        while candidate in self._used_ids:
            number += 1
            candidate = _digest(f"{call_id}#{number}", self._length)
        self._used_ids.add(candidate)
        return candidate


def _digest(text: str, length: int) -> str:
    """Returns letters and digits that depend only on the text."""
    number = int.from_bytes(hashlib.sha256(encodable_text(text).encode()).digest())
    letters = []
    for _ in range(length):
        number, rest = divmod(number, len(_ALPHANUMERIC))
        letters.append(_ALPHANUMERIC[rest])
    return "".join(letters)
