"""Parses untrusted JSON text: from models, MCP servers, clients and stored rows.

`json.loads` accepts input that later code cannot handle: nesting that exhausts the stack
(`RecursionError` is not a `ValueError`), `NaN` and numbers that overflow to infinity, which other
JSON parsers refuse, and unpaired surrogates, which UTF-8 cannot encode.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any

MAX_JSON_DEPTH = 100
"""Levels of arrays and objects that a JSON value may have; the value itself is the first."""
PACKED_JSON_DEPTH = MAX_JSON_DEPTH + 4
"""The same for a value inside an envelope of Strata's own, such as a packed tool return."""


class JsonTextError(ValueError):
    """The text is not JSON, or cannot be used; the message has the reason."""


class JsonTooDeepError(JsonTextError):
    """The text is nested deeper than the limit."""

    def __init__(self, max_depth: int) -> None:
        super().__init__(f"nested deeper than {max_depth} levels")


def parse_json(text: str | bytes, *, max_depth: int = MAX_JSON_DEPTH) -> Any:
    """Returns the value that a JSON text holds.

    Args:
        text: The text; bytes are read as UTF-8.
        max_depth: Levels of nesting that are accepted.

    Raises:
        JsonTooDeepError: The text is nested deeper.
        JsonTextError: The text is not JSON, or has a number that JSON or Python cannot express.
    """
    return _parsed(text, _DECODER, max_depth)


def parse_request_json(body: bytes) -> Any:
    """Returns the value of the JSON body of a request, which can be sent on unchanged.

    Raises:
        JsonTextError: As by `parse_json`; or an object has a duplicate name, which parsers resolve
            differently, or a text has an unpaired surrogate.
    """
    value = _parsed(body, _REQUEST_DECODER, MAX_JSON_DEPTH)
    # Only an escape can make a surrogate of valid UTF-8.
    if _SURROGATE_ESCAPE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise JsonTextError("a text has an unpaired surrogate") from None
    return value


def _parsed(text: str | bytes, decoder: json.JSONDecoder, max_depth: int) -> Any:
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = decoder.decode(text)
    except RecursionError:
        raise JsonTooDeepError(max_depth) from None
    except ValueError as error:
        raise JsonTextError(_problem(error)) from None
    # Counting brackets is much faster than walking the value, and excludes most texts.
    if text.count("[") + text.count("{") > max_depth and is_deeper(value, max_depth):
        raise JsonTooDeepError(max_depth)
    return value


def is_deeper(value: object, max_depth: int = MAX_JSON_DEPTH) -> bool:
    """Returns whether a JSON value has more than `max_depth` levels of arrays and objects."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        if not level:
            return False
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
    return bool(level)


quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Returns a text as JSON; only quotes, backslashes and control characters are escaped."""


def indented_json(value: Any) -> str:
    """Returns a JSON value as text with two spaces for each level, as models are shown it.

    The text is that of ``json.dumps(value, ensure_ascii=False, indent=2)``, which passes each piece
    of the text through a generator in Python for each level around it.

    Args:
        value: A value of limited depth (see `parse_json`); names of members must be texts.
    """
    return _indented(value, "\n")


def _indented(value: Any, line: str) -> str:
    """Returns a value whose last line begins with `line`: a line break and spaces."""
    if isinstance(value, str):
        return quoted(value)
    inner = line + "  "
    if isinstance(value, dict) and value:
        members = [f"{quoted(name)}: {_indented(item, inner)}" for name, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(members)}{line}}}"
    if isinstance(value, list | tuple) and value:
        return f"[{inner}{f',{inner}'.join([_indented(item, inner) for item in value])}{line}]"
    return _encode(value)


def encodable(value: Any) -> Any:
    """Returns a JSON value in which unpaired surrogates are replaced, so that UTF-8 can encode it.

    Args:
        value: A value of limited depth; see `parse_json`.
    """
    match value:
        case str():
            return encodable_text(value)
        case list():
            return [encodable(item) for item in value]
        case dict():
            return {encodable_text(name): encodable(item) for name, item in value.items()}
        case _:
            return value


def encodable_text(text: str) -> str:
    """Returns the text with surrogate pairs joined and unpaired surrogates replaced."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # UTF-16 joins the halves of pairs.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "replace").decode("utf-8")
    return text


def storable_text(text: str) -> str:
    """Returns the text without NUL, which PostgreSQL refuses, and unpaired surrogates."""
    return encodable_text(text.replace("\0", ""))


def replace_lone_surrogates(text: bytes) -> bytes:
    """Returns a JSON text in which escapes of unpaired surrogates are replaced by U+FFFD.

    Programs that cut a text within an emoji write such escapes (``JSON.stringify`` does), and
    strict parsers refuse the whole text for them.
    """
    return _ESCAPE.sub(_replaced, text) if _SURROGATE_ESCAPE.search(text) else text


class LoneSurrogateFilter:
    """`replace_lone_surrogates` for a JSON text that arrives in chunks."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Returns what can be decided with this chunk; an escape at its end is held back."""
        text = self._held + chunk
        end = _OPEN_ESCAPE.search(text)
        # Escapes are found from the front, since a backslash may belong to the one before it.
        self._held = b"" if end is None else text[end.start(1) :]
        return replace_lone_surrogates(text[: len(text) - len(self._held)])

    def close(self) -> bytes:
        """Returns the rest after the last chunk."""
        return replace_lone_surrogates(self._held)


def _replaced(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def _problem(error: ValueError) -> str:
    # Any other ValueError is about integers with too many digits. Its text names a Python
    # function, so it is replaced.
    if isinstance(error, json.JSONDecodeError | UnicodeError | _RefusedError):
        return str(error)
    return f"it holds a number of more than {sys.get_int_max_str_digits():,} digits"


class _RefusedError(ValueError):
    """A number that JSON or Python cannot express, or a repeated name."""


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"the number {text[:40]} is too large")
    return value


def _no_constant(name: str) -> float:
    raise _RefusedError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise _RefusedError(f"an object has the name {name[:40]!r} more than once")
            names.add(name)
    return value


_encode = json.JSONEncoder(ensure_ascii=False).encode
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_REQUEST_DECODER = json.JSONDecoder(
    parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_unique
)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_HIGH = rb"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
# An escape: of a pair, of one surrogate (group 1), or any other one.
_ESCAPE = re.compile(rb"\\(?:%b\\%b|(%b|%b)|.)" % (_HIGH, _LOW, _HIGH, _LOW), re.DOTALL)
# An escape at the end of a chunk (group 1) that may be incomplete, or the first one of a pair.
_PART = rb"(?:u[0-9a-fA-F]{0,3})?"
_OPEN_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*(\\(?:%b(?:\\%b)?|%b))\Z" % (_HIGH, _PART, _PART))
