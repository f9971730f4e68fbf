"""A validator of JSON schemas whose cost is bounded: schemas and values are untrusted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

# Keywords whose check takes a moment for each member of the value, whatever their schema.
_FOR_EACH_MEMBER = frozenset({"items", "contains", "uniqueItems", "additionalProperties"})
_CHARS_PER_STEP = 20
"""Characters of an error message that count as a step; a message repeats the value."""


class TooCostlyError(Exception):
    """A check takes more steps than it may."""


_steps_left: ContextVar[list[int] | None] = ContextVar("steps_left", default=None)


@contextmanager
def limited_steps(most: int) -> Iterator[None]:
    """Limits the steps of the checks within; 100,000 steps take about a third of a second.

    A step is a keyword, four of its values, two members of the value, or 20 characters of an error
    message: all alternatives of a schema fail with a message that repeats the whole value.

    Args:
        most: Maximum number of steps. More raise `TooCostlyError`.
    """
    token = _steps_left.set([most])
    try:
        yield
    finally:
        _steps_left.reset(token)


def _spend(steps: int) -> None:
    left = _steps_left.get()
    if left is None:
        return
    left[0] -= steps
    if left[0] < 0:
        raise TooCostlyError


def _unique_items(
    validator: Any, unique: Any, items: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Checks `uniqueItems` in linear time; jsonschema compares all pairs of objects."""
    if unique is True and isinstance(items, list) and len(set(map(_hashable, items))) < len(items):
        yield ValidationError("it has an item twice")


def _multiple_of(
    validator: Any, factor: Any, number: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Checks `multipleOf` by decimal digits; jsonschema overflows for integers over 1e308."""
    if not validator.is_type(number, "number"):
        return
    if Fraction(str(number)) % Fraction(str(factor)):
        yield ValidationError(f"{number!r} is not a multiple of {factor}")


def _hashable(value: Any) -> Hashable:
    """Returns a key that is equal for equal JSON values: 1 equals 1.0, but not true."""
    match value:
        case bool():
            return (bool, value)
        case list():
            _spend(len(value) // 2)
            return (list, *map(_hashable, value))
        case dict():
            _spend(len(value) // 2)
            return (dict, frozenset((name, _hashable(item)) for name, item in value.items()))
        case _:
            return value  # type: ignore[no-any-return]


def _counted(name: str, check: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the check of a keyword that counts its steps."""
    for_each_member = name in _FOR_EACH_MEMBER

    def run(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
        steps = 1 + (len(wanted) // 4 if isinstance(wanted, list | dict) else 0)
        if for_each_member and isinstance(value, list | dict):
            steps += len(value) // 2
        _spend(steps)
        for error in check(validator, wanted, value, schema) or ():
            # Errors of inner values have been counted.
            if not isinstance(error.validator, str):
                _spend(len(error.message) // _CHARS_PER_STEP)
            yield error

    return run


_CHECKS = {
    **Draft202012Validator.VALIDATORS,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
}
BoundedValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: _counted(name, check) for name, check in _CHECKS.items()}
)
"""A validator that checks a value of a million characters in linear time; see `limited_steps`."""
