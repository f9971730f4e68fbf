"""Reads fields of untrusted JSON from servers; wrong types give empty values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonFields: TypeAlias = Mapping[str, Any]

# More tokens than any model reads or writes in one call.
_HIGHEST_COUNT = 10**9
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
    """Returns a field that counts something; 0 if it is missing or not a count."""
    return count_in(holder.get(name))


def count_in(value: object) -> int:
    """Returns a value if it is a count, else 0.

    Counts are stored and added. A negative one would take tokens away from the project, and one
    that does not fit its column would make the run fail after a paid reply.
    """
    return value if type(value) is int and 0 <= value <= _HIGHEST_COUNT else 0
