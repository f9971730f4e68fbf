"""Packs the return of a tool for the model, and unpacks it (docs/wire-format.md#tool-returns)."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

from strata.shared.json_text import (
    PACKED_JSON_DEPTH,
    JsonTextError,
    indented_json,
    parse_json,
    storable_text,
)
from strata.shared.messages import ToolStatus
from strata.shared.settings import MIB
from strata.shared.text_work import run_text_work

FUNCTION_RETURN_CHAR_LIMIT = 50_000
"""Default limit of the characters of a return that are shown to the model."""
MAX_RETURN_BYTES = MIB
"""UTF-8 bytes of a packed return, independent of its limit of characters."""
TIME_FORMAT = "%Y-%m-%d %I:%M:%S %p %Z%z"
_NOTE = (
    " [NOTE: function output was truncated since it exceeded the character limit"
    " ({length} > {limit})]"
)


def pack(status: str, value: Any, now: datetime, limit: int) -> tuple[str, bool]:
    """Returns the packed return and whether it was cut.

    Args:
        status: The status as shown to the model: ``OK``, ``Failed`` or ``Unknown``.
        value: The return value of the tool. Objects and arrays stay JSON; None becomes ``"None"``.
        now: The time to show, in the agent's timezone.
        limit: Maximum number of characters of the message. A longer one is truncated as text, so
            that the packed return stays valid JSON.
    """
    message, truncated = clip(_to_message(value), limit)
    return packed(status, message, now), truncated


async def pack_on_thread(status: str, value: Any, now: datetime, limit: int) -> tuple[str, bool]:
    """Returns the same as `pack`, without blocking the event loop for a value of some MB."""
    if isinstance(value, str):
        return await run_text_work([value], lambda: pack(status, value, now, limit))
    return await asyncio.to_thread(pack, status, value, now, limit)


def packed(status: str, message: Any, now: datetime) -> str:
    """Returns the packed return: a JSON text with status, message and time.

    Args:
        status: The status as shown to the model.
        message: Text, or a JSON object or array.
        now: The time to show, in the agent's timezone.
    """
    body = {"status": status, "message": message, "time": now.strftime(TIME_FORMAT)}
    text = indented_json(body)
    if _size(text) <= MAX_RETURN_BYTES:
        return text
    # Indentation and escapes can make the JSON many times as long as the text.
    plain = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    length = len(plain)
    while _size(text) > MAX_RETURN_BYTES:
        length = min(length * MAX_RETURN_BYTES // _size(text), length - 1)
        truncated = plain[:length] + _NOTE.format(length=len(plain), limit=length)
        text = indented_json({**body, "message": truncated})
    return text


def unpacked(content: str) -> Any:
    """Returns the message of a packed return; of other content its JSON value, or else its text."""
    try:
        body = parse_json(content, max_depth=PACKED_JSON_DEPTH)
    except JsonTextError:
        return content
    is_packed = isinstance(body, dict) and "status" in body and "message" in body
    return body["message"] if is_packed else body


def result_of(content: str) -> str:
    """Returns the message of a packed return as text that can be stored; see `unpacked`."""
    message = unpacked(content)
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    # Escapes in the package can decode to characters that cannot be sent or stored.
    return storable_text(text)


def quoted_return(status: ToolStatus, content: str) -> str:
    """Returns the message of a packed return as text; its status comes first unless it is OK."""
    text = result_of(content)
    return text if status is ToolStatus.OK else f"{status.value}: {text}"


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _to_message(value: Any) -> Any:
    if value is None:
        return "None"
    return value if isinstance(value, str | dict | list) else json.dumps(value)


def clip(message: Any, limit: int) -> tuple[Any, bool]:
    """Truncates a message to `limit` characters and adds a note; returns whether it was cut."""
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    if len(text) <= limit:
        return message, False
    return text[:limit] + _NOTE.format(length=len(text), limit=limit), True
