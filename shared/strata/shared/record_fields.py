"""The fields of data classes, read and replaced with few function calls.

For the records of every turn: `dataclasses.replace` calls two functions for each field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["field_names", "field_reader", "members_of", "replace"]

if TYPE_CHECKING:
    # The type checker knows the fields that this function may replace.
    from dataclasses import replace
else:
    _Record = TypeVar("_Record")

    def replace(record: _Record, /, **changes: object) -> _Record:
        """Returns a copy of an instance of a data class with other values of some fields.

        As `dataclasses.replace`; all fields of the class must be arguments of its constructor.
        """
        kind = type(record)
        return kind(**{**members_of(record), **changes})


def members_of(record: object) -> dict[str, Any]:
    """Returns the fields of an instance of a data class by name; the values are not copied."""
    kind: Any = type(record)
    return dict(zip(field_names(kind), field_reader(kind)(record), strict=True))


@cache
def field_names(kind: Any) -> tuple[str, ...]:
    """Returns the names of the fields of a data class."""
    return tuple(field.name for field in fields(kind))


@cache
def field_reader(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that returns the values of all fields of an instance."""
    names = field_names(kind)
    if len(names) > 1:
        return attrgetter(*names)
    # `attrgetter` of a single name returns the value itself.
    return lambda record: tuple(getattr(record, name) for name in names)
