"""A property that is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_Value = TypeVar("_Value")


class CachedProperty(Generic[_Value]):
    """A property whose value is computed at the first access and kept with the object.

    `functools.cached_property` of Python 3.11 takes a lock that all objects share, which later
    releases do not. Two threads may both compute the value, which must be equal.

    Args:
        compute: Computes the value; it depends on nothing that changes.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, holder: None, owner: type) -> Self: ...
    @overload
    def __get__(self, holder: object, owner: type) -> _Value: ...

    def __get__(self, holder: object | None, owner: type) -> Self | _Value:
        if holder is None:
            return self
        # Later accesses find the value in the object and do not get here.
        value = holder.__dict__[self._name] = self._compute(holder)
        return value
