"""Reads fields of JSON that a server wrote, and takes nothing about them for granted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonFields: TypeAlias = Mapping[str, Any]

# What parsers make is a dict, which is known at once; an abstract class asks in Python.
_OBJECT = (dict, Mapping)


def object_in(value: object) -> JsonFields:
    """Returns a value if it is an object, else an empty one."""
    return value if value and isinstance(value, _OBJECT) else {}


def objects_in(value: object) -> list[JsonFields]:
    """Returns the objects of a list; none if the value is no list."""
    return [item for item in value if isinstance(item, _OBJECT)] if isinstance(value, list) else []


def text_of(holder: JsonFields, name: str) -> str:
    """Returns a field that is text, else an empty one."""
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def count_of(holder: JsonFields, name: str) -> int:
    """Returns a field that is a whole number, else 0."""
    value = holder.get(name)
    return value if isinstance(value, int) else 0
