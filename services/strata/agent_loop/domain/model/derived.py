"""Values that are computed from immutable objects, and kept with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

_Argument = TypeVar("_Argument")
_Value = TypeVar("_Value")


class Derived:
    """A base of immutable objects that cache values computed from them.

    The messages of a window are shown in every request. What a request needs of a stored message
    (its form, its size, its digest) is computed once for as long as the window is held (decision
    0160). Classes with this base must not have slots.
    """

    def derived(self, compute: Callable[[Self, _Argument], _Value], argument: _Argument) -> _Value:
        """Returns `compute(self, argument)`, from memory if the last argument was equal.

        Args:
            compute: A function of a module, not a closure. Its value must depend on nothing but
                the object and the argument, and is never changed. It must not contain the object,
                which would be freed by the garbage collector only.
            argument: Whatever else the value depends on. The same object is recognized fastest.
        """
        value: _Value
        try:
            known, value = self.__dict__["_derived"][compute]
        except KeyError:
            pass
        else:
            if known is argument or known == argument:
                return value
        value = compute(self, argument)
        kept: dict[Callable[..., Any], tuple[Any, Any]]
        kept = self.__dict__.setdefault("_derived", {})
        kept[compute] = (argument, value)
        return value
