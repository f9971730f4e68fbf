"""Decides what happens to tool calls whose executor failed before it returned a result."""

from __future__ import annotations

from enum import Enum, auto

from strata.protocol.errors import (
    AbortedError,
    DataLossError,
    InternalError,
    StrataError,
    UnauthenticatedError,
    is_transient,
)

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
"""Bounds of the pauses between two requests to an unavailable executor."""

_MOST_DEFECTS = 2


class LostCallAction(Enum):
    """What the loop does with a call that has no result."""

    REPEAT = auto()
    """Send the call again: it was not started, or is safe to repeat."""
    REPORT_UNKNOWN = auto()
    """Report the outcome as unknown: the call may have had its effect."""
    REPORT_FAILED = auto()
    """Report the call as failed: it was not run, and would be refused again."""
    RAISE = auto()
    """Raise the error: another attempt of the run handles the call."""


def action_for_lost_call(
    error: StrataError, *, started: bool, repeatable: bool, defects: int = 0
) -> LostCallAction:
    """Returns what the loop does with a call whose request failed.

    An unknown outcome is never reported as failed: the model would repeat a call that may have had
    its effect.

    Args:
        error: How the request failed.
        started: The executor reported that it began the call.
        repeatable: Repeating the call has no second effect.
        defects: How many earlier requests ended with an internal error of the executor.
    """
    if isinstance(error, AbortedError | UnauthenticatedError):
        return LostCallAction.RAISE
    may_have_begun = started or error.lost
    if is_transient(error):
        return (
            LostCallAction.REPEAT
            if repeatable or not may_have_begun
            else LostCallAction.REPORT_UNKNOWN
        )
    if isinstance(error, InternalError | DataLossError):
        if repeatable and defects < _MOST_DEFECTS:
            return LostCallAction.REPEAT
        return LostCallAction.REPORT_UNKNOWN if may_have_begun else LostCallAction.REPORT_FAILED
    return LostCallAction.REPORT_UNKNOWN if started else LostCallAction.REPORT_FAILED
