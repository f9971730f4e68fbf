"""Answers of MCP servers that are not valid JSON-RPC.

The SDK drops them, and the call would wait for its answer until its deadline.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import pydantic_core
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

# Starts the texts of the SDK for answers that it cannot parse, too.
_FAILED = "Failed to parse the answer"
# Longer integers are not needed to find the request, and Python refuses to read very long ones.
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class UnreadableAnswer:
    """An invalid answer.

    Attributes:
        reason: What is wrong with it.
        ids: The requests that it answers; empty if they are not known.
    """

    reason: str
    ids: tuple[int | str, ...] = ()

    @property
    def text(self) -> str:
        """Describes the failure of a call."""
        return f"{_FAILED}: {self.reason}"

    def messages(self) -> list[SessionMessage]:
        """Returns an error for each request that it answers."""
        error = types.ErrorData(code=types.PARSE_ERROR, message=self.text)
        return [
            SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id_, error=error))
            for id_ in self.ids
        ]


def read_message(text: str | bytes) -> SessionMessage | UnreadableAnswer | None:
    """Parses a message; None for other text, such as the log lines of a program."""
    try:
        # `validate_json` takes more than twice as long: it reads the text once per kind of message.
        message = jsonrpc_message_adapter.validate_python(_parsed(text), by_name=False)
    except ValidationError as error:
        return unreadable_answer(error)
    return without_id(message) or SessionMessage(message)


def _parsed(text: str | bytes) -> Any:
    try:
        return pydantic_core.from_json(text)
    except ValueError:
        # Raises the error that `unreadable_answer` understands.
        return jsonrpc_message_adapter.validate_json(text, by_name=False)


def without_id(message: object) -> UnreadableAnswer | None:
    """Returns an error that names no request: the server could not read the request's id."""
    if isinstance(message, types.JSONRPCError) and message.id is None:
        return UnreadableAnswer(f"an error without an id: {message.error.message}")
    return None


def unreadable_answer(error: ValidationError) -> UnreadableAnswer | None:
    """Returns the answer that the SDK could not parse; None if it does not answer a request."""
    first = error.errors(include_url=False, include_context=False)[0]
    value, reason = first["input"], "it is not a valid JSON-RPC response"
    if first["type"] == "json_invalid":
        text = value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
        reason = first["msg"]
        try:
            value = json.loads(text, parse_int=_short_int)
        except (ValueError, RecursionError):
            is_message = text.lstrip()[:1] in ("{", "[") and '"jsonrpc"' in text
            return UnreadableAnswer(reason) if is_message else None
    elif isinstance(value, str | bytes | bytearray):
        return None
    if isinstance(value, list):
        reason = "JSON-RPC batches are not part of this version of the protocol"
        ids = tuple(item["id"] for item in value if _is_answer(item))
        return UnreadableAnswer(reason, ids) if ids else None
    return UnreadableAnswer(reason, (value["id"],)) if _is_answer(value) else None


def _is_answer(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and type(value.get("id")) in (int, str)
        # Log lines of programs have ids, too.
        and not {"jsonrpc", "result", "error"}.isdisjoint(value)
        and "method" not in value
    )


def _short_int(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MAX_DIGITS else None
