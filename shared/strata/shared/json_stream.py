"""Decodes JSON that arrives in pieces, such as the streamed arguments of a tool call."""

from __future__ import annotations

from collections.abc import Callable

from strata.shared.json_text import JsonTextError, parse_json

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_HIGH = range(0xD800, 0xDC00)
_LOW = range(0xDC00, 0xE000)
_REPLACEMENT = "?"  # as in `encodable_text`


class StringDecoder:
    """Decodes the inside of a JSON string that arrives in pieces, up to its closing quote.

    An incomplete escape is kept until the rest of it arrives. An unpaired surrogate becomes a
    question mark, as in stored texts.
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


class MemberDecoder:
    """Decodes one text member of a JSON object that arrives in pieces.

    Text that is not an object, members of inner objects and values that are not strings decode to
    nothing. If the name occurs twice, the first string counts.

    Args:
        name: Name of the member.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._read: Callable[[str], None] = self._start
        self._key = ""
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self._decoder: StringDecoder | None = None

    def feed(self, piece: str) -> str:
        """Adds a piece and returns the part of the text that is now complete."""
        if self._decoder is not None:
            return self._decoder.feed(piece)
        for index, char in enumerate(piece, 1):
            self._read(char)
            if self._decoder is not None:
                return self._decoder.feed(piece[index:])
        return ""

    def _start(self, char: str) -> None:
        if char == "{":
            self._read = self._between
        elif not char.isspace():
            self._read = self._rest

    def _rest(self, char: str) -> None:
        """Ignores text after the object, or text that is not an object."""

    def _between(self, char: str) -> None:
        """Reads the text before a member, or the end of the object."""
        if char == '"':
            self._key, self._read = char, self._in_key
        elif char != "," and not char.isspace():
            self._read = self._rest

    def _in_key(self, char: str) -> None:
        self._key += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._read = self._before_value

    def _before_value(self, char: str) -> None:
        if char == ":" or char.isspace():
            return
        if char == '"' and key_name(self._key) == self._name:
            self._decoder = StringDecoder()
            return
        self._read = self._in_value
        self._in_value(char)

    def _in_value(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = char == "\\"
            self._quoted = char != '"'
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif not self._depth and char in ",}":
            self._read = self._between
            self._between(char)
        elif char in "}]":
            self._depth -= 1


def key_name(quoted: str) -> str:
    """Returns the name in a quoted key; a key that cannot be decoded is returned unchanged."""
    if "\\" not in quoted:
        return quoted[1:-1]
    try:
        return str(parse_json(quoted))
    except JsonTextError:
        return quoted[1:-1]
