"""Decides what to do with tool calls whose executor failed before it returned a result."""

from __future__ import annotations

from enum import Enum, auto

from strata.protocol.errors import (
    AbortedError,
    DataLossError,
    InternalError,
    StrataError,
    UnauthenticatedError,
    passes,
)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Bounds of the pauses between two requests to an unavailable executor."""

_MOST_DEFECTS = 2


class Fate(Enum):
    """The way to handle a call without a result."""

    REPEAT = auto()
    """Send it again: it was not started, or is safe to repeat."""
    UNKNOWN = auto()
    """It may have had its effect."""
    REFUSED = auto()
    """It was not run, and sending it again would be refused again."""
    RAISE = auto()
    """Leave it to another attempt of the run."""


def fate_of(error: StrataError, *, started: bool, repeatable: bool, defects: int = 0) -> Fate:
    """Returns what to do about a call whose request failed.

    An unknown outcome is never reported as failed: the model would repeat a call that may have had
    its effect.

    Args:
        error: How the request failed.
        started: The executor reported that it began the call.
        repeatable: Repeating the call has no second effect.
        defects: How many earlier requests ended with an internal error of the executor.
    """
    if isinstance(error, AbortedError | UnauthenticatedError):
        return Fate.RAISE
    begun = started or error.lost
    if passes(error):
        return Fate.REPEAT if repeatable or not begun else Fate.UNKNOWN
    if isinstance(error, InternalError | DataLossError):
        if repeatable and defects < _MOST_DEFECTS:
            return Fate.REPEAT
        return Fate.UNKNOWN if begun else Fate.REFUSED
    return Fate.UNKNOWN if started else Fate.REFUSED
