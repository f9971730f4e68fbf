"""Reads one action, `{"tool": name, "arguments": {...}}`, while a model is still writing it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from strata.shared.json_stream import StringDecoder
from strata.shared.json_text import JsonTextError, is_deeper, parse_json

_HEAD = re.compile(r'\s*(?:```(?:json)?\s*)?\{\s*"tool"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*')
_HEAD_CHARS = 10_000
_MESSAGE = re.compile(r'\{\s*"message"\s*:\s*"')


@dataclass(frozen=True, slots=True)
class ModelAction:
    """An action of the model. `arguments` is raw JSON text, valid or not."""

    tool: str
    arguments: str

    def message(self) -> str | None:
        """Returns the message to the user, as JSON text if it is an object; None if missing."""
        try:
            value = parse_json(self.arguments)
        except JsonTextError:
            return None
        message = value.get("message") if isinstance(value, dict) else None
        if isinstance(message, dict):
            return json.dumps(message, ensure_ascii=False)
        return message if isinstance(message, str) else None


class MessageStream:
    """Decodes the message of a "say" action piece by piece.

    Args:
        say: Name of the action that sends a message to the user. Other actions yield nothing.
    """

    def __init__(self, say: str) -> None:
        self._say = say
        self._buffer = ""
        self._decoder: StringDecoder | None = None
        self._other = False

    def feed(self, piece: str) -> str:
        """Adds a piece of the reply; returns the newly decoded part of the message."""
        if self._decoder is not None:
            return self._decoder.feed(piece)
        if self._other:
            return ""
        self._buffer += piece
        head = _HEAD.match(self._buffer)
        if head is None:
            # If no action begins within the limit, only the finished reply is parsed.
            self._other = len(self._buffer) > _HEAD_CHARS
            return ""
        if head[1] != self._say:
            self._other = True
            return ""
        start = _MESSAGE.match(self._buffer, head.end())
        if start is None:
            self._other = len(self._buffer) > _HEAD_CHARS
            return ""
        self._decoder = StringDecoder()
        return self._decoder.feed(self._buffer[start.end() :])


def parse(text: str) -> ModelAction | None:
    """Finds the action in a finished reply; None if there is none.

    Tolerates what small models write if the server does not enforce the schema: a code fence or
    words around the object, raw line breaks in strings, "name" and "parameters" for the keys.
    """
    start = text.find("{")
    while start != -1:
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except RecursionError:
            return _too_deep(text, start)
        except ValueError:
            # A search inside broken JSON could mistake an argument for an action.
            return None
        if is_deeper(value):
            return _too_deep(text, start)
        action = _action(value)
        if action is not None:
            return action
        start = text.find("{", end)
    return None


def _too_deep(text: str, start: int) -> ModelAction | None:
    """Returns the action with its arguments unparsed, for the loop to refuse as too deep."""
    head = _HEAD.match(text, start)
    return None if head is None else ModelAction(head[1], text[head.end() :])


def _action(value: Any) -> ModelAction | None:
    if not isinstance(value, dict):
        return None
    tool = value.get("tool", value.get("name"))
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(tool, str) or not tool or not isinstance(arguments, dict):
        return None
    return ModelAction(tool, json.dumps(arguments, ensure_ascii=False))
