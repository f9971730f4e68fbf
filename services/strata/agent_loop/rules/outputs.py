"""Matches the output of a tool with the keys of a conditional rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strata.shared.json_text import JsonTextError, parse_json

_PYTHON = {"True": True, "False": False, "None": None}
_MAX_READ = 100_000
"""Longer texts are compared as text only."""


def mapped_tool(mapping: Mapping[str, str], output: Any) -> str | None:
    """Returns the tool to which a mapping maps an output; None if no key matches.

    A key with the same text wins. Otherwise a key matches if it is the same JSON value, since the
    text of a value ("true", "3", '{"a": 1}') can be written in several ways.
    """
    if isinstance(output, str) and output in mapping:
        return mapping[output]
    values = list(_readings(output))
    for key in sorted(mapping):
        if any(_same(reading, value) for reading in _readings(key) for value in values):
            return mapping[key]
    return None


def _readings(value: Any) -> Iterator[Any]:
    """Yields the value and, if it is the text of a JSON value, the parsed value."""
    if not isinstance(value, str):
        yield value
        return
    text = value.strip()
    yield text
    if text in _PYTHON:
        yield _PYTHON[text]
    elif len(text) <= _MAX_READ:
        try:
            yield parse_json(text)
        except JsonTextError:
            return


def _same(one: Any, other: Any) -> bool:
    """Compares JSON values; unlike in Python, true does not equal 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)
