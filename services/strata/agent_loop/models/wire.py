"""Makes any stored conversation legal to send, whatever the provider.

Providers refuse a whole request for one unanswered call, one orphan return, one repeated call id
or one unpaired surrogate. The store keeps pairs together (architecture, invariant 4); this is
the last line of defence, and the place where ids take their form on the wire.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from strata.agent_loop.models.domain import ChatMessage, Part, Role, TextPart, ToolCall

# Observed of the old server: ids are stored whole and cut on the wire (observed.md §2).
CALL_ID_LIMIT = 29
MISSING_RETURN = "No result of this call was recorded."

_ILLEGAL_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


def repair(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Returns the messages as a sequence that every provider accepts.

    Each assistant message with calls is followed at once by exactly one return per call, in call
    order. A call without a return gets `MISSING_RETURN`; a return without a call is left out, and
    so are messages that say nothing. Call ids are unique, at most `CALL_ID_LIMIT` characters of
    [a-zA-Z0-9_-], and stay the same while the conversation only grows at its end.
    """
    returns = _match_returns(messages)
    ids = _WireIds()
    repaired: list[ChatMessage] = []
    for position, message in enumerate(messages):
        if message.role is Role.TOOL:
            continue
        if not message.tool_calls:
            if message.text.strip():
                repaired.append(replace(message, content=_clean_parts(message.content)))
            continue
        wire_ids = [ids.assign(call.id) for call in message.tool_calls]
        calls = zip(message.tool_calls, wire_ids, strict=True)
        repaired.append(
            replace(
                message,
                content=_clean_parts(message.content),
                tool_calls=tuple(
                    ToolCall(wire_id, call.name, clean(call.arguments)) for call, wire_id in calls
                ),
            )
        )
        for index, wire_id in enumerate(wire_ids):
            answer = returns.get((position, index))
            text = clean(answer.text) if answer is not None else MISSING_RETURN
            repaired.append(ChatMessage.tool(wire_id, text))
    return repaired


def clean(text: str) -> str:
    """Replaces what UTF-8 cannot carry: unpaired surrogates."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def argument_object(arguments: str) -> dict[str, Any] | None:
    """The arguments as an object; None if they are anything else."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def legal_arguments(arguments: str) -> str:
    """Arguments that a server may parse: as they are, or wrapped when they are no JSON object.

    Local servers render earlier calls through a template that parses them and answer 500 to the
    whole conversation when one does not parse.
    """
    if argument_object(arguments) is not None:
        return arguments
    if not arguments.strip():
        return "{}"
    return json.dumps({"invalid_arguments": arguments}, ensure_ascii=False)


def leading_system(messages: Sequence[ChatMessage]) -> tuple[str, Sequence[ChatMessage]]:
    """Splits off the system text that opens the prompt."""
    count = 0
    while count < len(messages) and messages[count].role is Role.SYSTEM:
        count += 1
    return "\n\n".join(message.text for message in messages[:count]), messages[count:]


def _match_returns(
    messages: Sequence[ChatMessage],
) -> dict[tuple[int, int], ChatMessage]:
    """Finds the return of each call: the first unclaimed one after it that bears its id.

    Some servers number the calls of every reply anew ("call_0"), so that ids repeat: the latest
    unanswered call wins.
    """
    unanswered: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    matched: dict[tuple[int, int], ChatMessage] = {}
    for position, message in enumerate(messages):
        if message.role is not Role.TOOL:
            # Reversed, so that of two calls with one id in one message the first is popped first.
            for index in reversed(range(len(message.tool_calls))):
                unanswered[message.tool_calls[index].id].append((position, index))
        elif unanswered[message.tool_call_id or ""]:
            matched[unanswered[message.tool_call_id or ""].pop()] = message
    return matched


def _clean_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    # Reasoning is signed: it goes back byte for byte or not at all.
    return tuple(TextPart(clean(p.text)) if isinstance(p, TextPart) else p for p in parts)


class _WireIds:
    """Gives every call of a request an id of its own."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def assign(self, call_id: str) -> str:
        base = _ILLEGAL_IN_ID.sub("_", call_id)[:CALL_ID_LIMIT] or "call"
        candidate, number = base, 1
        while candidate in self._used:
            number += 1
            suffix = f"_{number}"
            candidate = base[: CALL_ID_LIMIT - len(suffix)] + suffix
        self._used.add(candidate)
        return candidate
