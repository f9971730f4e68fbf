"""What becomes of tool calls whose executor failed or broke off."""

from __future__ import annotations

from enum import Enum, auto

from strata.shared.errors import (
    AbortedError,
    DataLossError,
    InternalError,
    StrataError,
    UnauthenticatedError,
    passes,
)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Bounds of the pauses between two requests to an executor that is away."""

_MOST_DEFECTS = 2


class Fate(Enum):
    """What to do about a call without a result."""

    REPEAT = auto()
    """Send it again: it was not begun, or may be made twice."""
    UNKNOWN = auto()
    """It may have had its effect."""
    REFUSED = auto()
    """It was not run, and would not be if it was sent again."""
    RAISE = auto()
    """Another attempt of the run decides."""


def fate_of(error: StrataError, *, started: bool, repeatable: bool, defects: int = 0) -> Fate:
    """Returns what to do about a call whose request failed.

    An outcome that is not known is never a failure for the model: it would do again what may be
    done already.

    Args:
        error: How the request failed.
        started: The executor has said that it began the call.
        repeatable: The call may be made again without a second effect.
        defects: How often a defect of the executor has ended the request before.
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
