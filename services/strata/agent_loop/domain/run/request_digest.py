"""The canonical form of a model request, and a digest that identifies its exact content.

The digest is stored with the run. A replay compares it to find out whether a rebuilt request equals
the one that was sent. The canonical form is the request before a provider's dialect
converts it. It holds ids of images, not their bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from typing import Any

from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    ModelRequest,
    TextPart,
    ToolSchema,
)
from strata.shared.record_fields import field_names, members_of

_DIGEST_BYTES = 16
_OPTIONS = tuple(name for name in field_names(ModelRequest) if name not in ("messages", "tools"))


@dataclass(frozen=True, slots=True)
class SystemChange:
    """The difference from a system message back to the previous one.

    Attributes:
        before: Digest of the previous text.
        prefix_chars: Length of the common beginning of both texts.
        suffix_chars: Length of the common end of both texts.
        removed: The text between them in the previous text.
    """

    before: bytes
    prefix_chars: int
    suffix_chars: int
    removed: str

    def undo(self, after: str) -> str | None:
        """Returns the previous text; None if this is not the change that led to `after`."""
        end = len(after) - self.suffix_chars
        if not 0 <= self.prefix_chars <= end <= len(after):
            return None
        text = after[: self.prefix_chars] + self.removed + after[end:]
        return text if digest_of_text(text) == self.before else None


@dataclass(frozen=True, slots=True)
class RequestDigest:
    """Identifies the exact content of one request.

    Attributes:
        system: Digest of the system message.
        options: Digest of the tools and all other options.
        messages: Digest of the digests of the messages after the system message.
        window: Sequences of the window's messages without the system message, in order: the first
            and the last of each range of consecutive ones.
        bytes_per_token: Ratio with which the tokens of the request were estimated.
        change: Difference to the previous system message; None if it is the same.
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
    """Returns the digest of a request.

    Args:
        request: The request; its first message is the system message.
        window: The window that it was built from, the system message first.
        bytes_per_token: Ratio with which its tokens were estimated.
        before: Text of the system message of the previous request, or of the stored one.
    """
    text = request.messages[0].text
    return RequestDigest(
        system=digest_of_text(text),
        options=digest_of_text(options_json(request)),
        messages=_digest([m.derived(_message_digest, None) for m in request.messages[1:]]),
        window=_ranges([message.sequence for message in window[1:]]),
        bytes_per_token=bytes_per_token,
        change=None if text == before else _change(before, text),
    )


def options_json(request: ModelRequest) -> str:
    """Returns the canonical JSON of a request without its messages."""
    # The tools are most of it, and the same in most requests of an agent.
    tools = ",".join([tool.derived(_tool_json, None) for tool in request.tools])
    others = json_of({name: getattr(request, name) for name in _OPTIONS})
    return f'{{"tools":[{tools}],{others[1:]}'


def message_json(message: ChatMessage) -> str:
    """Returns the canonical JSON of a message."""
    return json_of(_plain_message(message))


def is_digest_of_messages(digest: bytes, messages: Sequence[str]) -> bool:
    """Returns whether a digest belongs to messages in canonical JSON; see `RequestDigest`."""
    if digest == _digest(map(digest_of_text, messages)):
        return True
    # Runs of before 28 November 2026 have the digest of the messages as one JSON list.
    return digest == digest_of_text(f"[{','.join(messages)}]")


def json_of(value: Any) -> str:
    """Returns the canonical JSON of a value of the domain."""
    return _encode(value)


def digest_of_text(text: str) -> bytes:
    """Returns the digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]


def _digest(digests: Iterable[bytes]) -> bytes:
    return hashlib.sha256(b"".join(digests)).digest()[:_DIGEST_BYTES]


def _tool_json(tool: ToolSchema, _: None) -> str:
    return json_of(tool)


def _message_digest(message: ChatMessage, _: None) -> bytes:
    return digest_of_text(message_json(message))


def _plain_message(message: ChatMessage) -> dict[str, Any]:
    # Most of a request consists of these; encoding them field by field takes twice as long.
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
        members = members_of(value).items()
        return {name: member for name, member in members if not isinstance(member, bytes)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no canonical form")


def _ranges(sequences: Sequence[int]) -> tuple[int, ...]:
    ranges: list[int] = []
    for sequence in sequences:
        if ranges and sequence == ranges[-1] + 1:
            ranges[-1] = sequence
        else:
            ranges += [sequence, sequence]
    return tuple(ranges)


def _change(before: str, after: str) -> SystemChange:
    max_length = min(len(before), len(after))
    prefix = _common(before, after, max_length)
    # Reversed, the common end of the two rests is a common beginning.
    suffix = _common(before[prefix:][::-1], after[prefix:][::-1], max_length - prefix)
    removed = before[prefix : len(before) - suffix]
    return SystemChange(digest_of_text(before), prefix, suffix, removed)


def _common(one: str, other: str, max_length: int) -> int:
    """Returns the length of the common beginning of two texts."""
    low, high = 0, max_length
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_encode = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":")).encode
