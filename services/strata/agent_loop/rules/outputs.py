"""Whether what a tool returned is an output that a conditional rule names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strata.shared.json_text import JsonTextError, parse_json

_PYTHON = {"True": True, "False": False, "None": None}
_MAX_READ = 100_000
"""Longer texts are compared as text only."""


def mapped_tool(mapping: Mapping[str, str], output: Any) -> str | None:
    """Returns the tool that a mapping names for an output; None if it names none.

    The same text wins. Otherwise a key means an output if both are the same value: tools return
    JSON values, and the text of one ("true", "3", '{"a": 1}') may be written in several ways.
    """
    if isinstance(output, str) and output in mapping:
        return mapping[output]
    values = list(_readings(output))
    for key in sorted(mapping):
        if any(_same(wanted, value) for wanted in _readings(key) for value in values):
            return mapping[key]
    return None


def _readings(value: Any) -> Iterator[Any]:
    """The value, and if it is a text that stands for a JSON value, that one."""
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
    """Equality in which true is not 1, as in JSON."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)
