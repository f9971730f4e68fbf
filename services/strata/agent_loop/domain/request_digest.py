"""What a request to a model was made of: a canonical form, and a digest that names it exactly.

The digest is stored with the run, so that it can be told long afterwards whether a request that is
made again equals the one that was sent. The canonical form is of the request as the loop hands it
to a model, before a provider's dialect gives it the shape of its API. It has no bytes of images:
an image is named by its id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any

from strata.agent_loop.domain.messages import Message
from strata.agent_loop.models.domain import ChatMessage, ChatRole, ModelRequest, TextPart

_DIGEST_BYTES = 16
_OPTIONS = tuple(field.name for field in fields(ModelRequest) if field.name != "messages")


@dataclass(frozen=True, slots=True)
class SystemChange:
    """How to get from a system message back to the one before it.

    Attributes:
        before: Digest of the text before.
        prefix_chars: Characters at the beginning that both texts have.
        suffix_chars: Characters at the end that both texts have.
        removed: What the text before had between them.
    """

    before: bytes
    prefix_chars: int
    suffix_chars: int
    removed: str

    def undo(self, after: str) -> str | None:
        """Returns the text before the change; None if this is not a change to the text `after`."""
        end = len(after) - self.suffix_chars
        if not 0 <= self.prefix_chars <= end <= len(after):
            return None
        text = after[: self.prefix_chars] + self.removed + after[end:]
        return text if digest_of_text(text) == self.before else None


@dataclass(frozen=True, slots=True)
class RequestDigest:
    """Names exactly what one request was made of.

    Attributes:
        system: Digest of the system message.
        options: Digest of the tools and everything else but the messages.
        messages: Digest of the messages after the system message.
        window: Sequences of the messages of the window without the system message, in its order:
            the first and the last of each range of consecutive ones.
        bytes_per_token: Ratio that the size of the request was judged by.
        change: How the system message differs from the one before; None if it does not.
    """

    system: bytes
    options: bytes
    messages: bytes
    window: tuple[int, ...]
    bytes_per_token: float
    change: SystemChange | None = None


def digest_request(
    request: ModelRequest, window: Sequence[Message], bytes_per_token: float, before: str
) -> RequestDigest:
    """Returns what names a request.

    Args:
        request: The request; its first message is the system message.
        window: The window that it was built from, the system message first.
        bytes_per_token: Ratio that its size was judged by.
        before: Text of the system message of the request before it, or of the stored one.
    """
    text = request.messages[0].text
    return RequestDigest(
        system=digest_of_text(text),
        options=digest_of_text(options_json(request)),
        messages=digest_of_text(json_of([_plain_message(m) for m in request.messages[1:]])),
        window=_ranges([message.sequence for message in window[1:]]),
        bytes_per_token=bytes_per_token,
        change=None if text == before else _change(before, text),
    )


def options_json(request: ModelRequest) -> str:
    """Returns the canonical JSON of everything in a request but its messages."""
    return json_of({name: getattr(request, name) for name in _OPTIONS})


def message_json(message: ChatMessage) -> str:
    """Returns the canonical JSON of a message."""
    return json_of(_plain_message(message))


def digest_of_messages(messages: Sequence[str]) -> bytes:
    """Returns the digest of messages in canonical JSON, as `RequestDigest.messages` has it."""
    return digest_of_text(f"[{','.join(messages)}]")


def json_of(value: Any) -> str:
    """Returns the canonical JSON of a value of the domain."""
    return _encode(value)


def digest_of_text(text: str) -> bytes:
    """Returns the digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]


def _plain_message(message: ChatMessage) -> dict[str, Any]:
    # Most of a request is made of these: encoding them field by field would take twice as long.
    plain: dict[str, Any] = {
        "role": message.role,
        "content": [
            {"text": part.text} if type(part) is TextPart else part for part in message.content
        ],
    }
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.tool_calls
        ]
    if message.role is ChatRole.TOOL:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        kind: Any = type(value)
        named = [(name, getattr(value, name)) for name in _field_names(kind)]
        return {name: member for name, member in named if not isinstance(member, bytes)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no canonical form")


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _ranges(sequences: Sequence[int]) -> tuple[int, ...]:
    ranges: list[int] = []
    for sequence in sequences:
        if ranges and sequence == ranges[-1] + 1:
            ranges[-1] = sequence
        else:
            ranges += [sequence, sequence]
    return tuple(ranges)


def _change(before: str, after: str) -> SystemChange:
    most = min(len(before), len(after))
    prefix = _common(before, after, most)
    # Read backwards, the rest of both begins with what they have in common at the end.
    suffix = _common(before[prefix:][::-1], after[prefix:][::-1], most - prefix)
    removed = before[prefix : len(before) - suffix]
    return SystemChange(digest_of_text(before), prefix, suffix, removed)


def _common(one: str, other: str, most: int) -> int:
    """Returns how many characters at their beginning two texts have in common."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_encode = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":")).encode
