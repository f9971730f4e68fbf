"""Reads one action, `{"tool": name, "arguments": {...}}`, while a model is still writing it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from strata.shared.json_text import JsonTextError, is_deeper, parse_json

_HEAD = re.compile(r'\s*(?:```(?:json)?\s*)?\{\s*"tool"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*')
_HEAD_CHARS = 10_000
_MESSAGE = re.compile(r'\{\s*"message"\s*:\s*"')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_HIGH = range(0xD800, 0xDC00)
_LOW = range(0xDC00, 0xE000)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Action:
    """What the model wants to do. `arguments` is raw JSON text, valid or not."""

    tool: str
    arguments: str

    def message(self) -> str | None:
        """The text of a message to the user, JSON if it is an object; None if there is none."""
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
        say: Name of the action that talks to the user. Any other action yields nothing here.
    """

    def __init__(self, say: str) -> None:
        self._say = say
        self._buffer = ""
        self._decoder: StringDecoder | None = None
        self._other = False

    def feed(self, piece: str) -> str:
        """Adds what the model wrote and returns the part of the message that is now certain."""
        if self._decoder is not None:
            return self._decoder.feed(piece)
        if self._other:
            return ""
        self._buffer += piece
        head = _HEAD.match(self._buffer)
        if head is None:
            # Far beyond where an action begins, only the finished reply is parsed.
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


class StringDecoder:
    """Decodes the inside of a JSON string that arrives in pieces, up to its closing quote.

    Half an escape is held back until the rest has come. A surrogate without its other half
    becomes the replacement character.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._high: int | None = None
        self.closed = False

    def feed(self, piece: str) -> str:
        """Adds a piece and returns what it decodes to."""
        decoded: list[str] = []
        text = self._pending + piece
        self._pending = ""
        at = 0
        while at < len(text) and not self.closed:
            if text[at] == '"':
                self.closed = True
                self._flush(decoded)
                break
            if text[at] != "\\":
                self._flush(decoded)
                decoded.append(text[at])
                at += 1
                continue
            length = 6 if text[at + 1 : at + 2] == "u" else 2
            if at + length > len(text):
                self._pending = text[at:]
                break
            self._escape(text[at + 1 : at + length], decoded)
            at += length
        return "".join(decoded)

    def _escape(self, escape: str, decoded: list[str]) -> None:
        if escape[0] != "u":
            self._flush(decoded)
            decoded.append(_ESCAPES.get(escape, escape))
            return
        try:
            unit = int(escape[1:], 16)
        except ValueError:
            unit = ord(_REPLACEMENT)
        if self._high is not None and unit in _LOW:
            pair = 0x10000 + ((self._high - 0xD800) << 10) + (unit - 0xDC00)
            self._high = None
            decoded.append(chr(pair))
            return
        self._flush(decoded)
        if unit in _HIGH:
            self._high = unit
        else:
            decoded.append(_REPLACEMENT if unit in _LOW else chr(unit))

    def _flush(self, decoded: list[str]) -> None:
        if self._high is not None:
            self._high = None
            decoded.append(_REPLACEMENT)


def parse(text: str) -> Action | None:
    """Finds the action in a finished reply; None if there is none.

    Tolerant of what small models do when the server does not enforce the schema: a code fence or
    words around the object, raw line breaks in strings, "name" and "parameters" for the keys.
    """
    start = text.find("{")
    while start != -1:
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        except RecursionError:
            return _too_deep(text, start)
        except ValueError:
            # Looking inside broken JSON could take an argument for an action.
            return None
        if is_deeper(value):
            return _too_deep(text, start)
        action = _action(value)
        if action is not None:
            return action
        start = text.find("{", end)
    return None


def _too_deep(text: str, start: int) -> Action | None:
    """Returns the action with its arguments unparsed, for the loop to refuse as too deep."""
    head = _HEAD.match(text, start)
    return None if head is None else Action(head[1], text[head.end() :])


def _action(value: Any) -> Action | None:
    if not isinstance(value, dict):
        return None
    tool = value.get("tool", value.get("name"))
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(tool, str) or not tool or not isinstance(arguments, dict):
        return None
    return Action(tool, json.dumps(arguments, ensure_ascii=False))
