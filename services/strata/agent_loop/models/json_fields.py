"""Reads fields of untrusted JSON from servers; wrong types give empty values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonFields: TypeAlias = Mapping[str, Any]

# The dict of a parser is recognised at once; a check against an abstract class runs Python code.
_OBJECT = (dict, Mapping)


def object_in(value: object) -> JsonFields:
    """Returns a value if it is an object, else an empty one."""
    return value if value and isinstance(value, _OBJECT) else {}


def objects_in(value: object) -> list[JsonFields]:
    """Returns the objects of a list; empty if the value is not a list."""
    return [item for item in value if isinstance(item, _OBJECT)] if isinstance(value, list) else []


def text_of(holder: JsonFields, name: str) -> str:
    """Returns a text field; empty if it is missing or not a text."""
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def count_of(holder: JsonFields, name: str) -> int:
    """Returns an integer field; 0 if it is missing or not an integer."""
    value = holder.get(name)
    return value if isinstance(value, int) else 0
