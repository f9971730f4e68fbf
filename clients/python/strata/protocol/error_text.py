"""The text of an error for people."""

from __future__ import annotations

from strata.protocol.errors import Reason, StrataError

# Metadata worth showing; the rest repeats the message or is for programs.
_SHOWN_METADATA = ("incident_id",)


def error_lines(error: StrataError, *, with_reason: bool = True) -> list[str]:
    """Returns the message, and a line for each invalid field and for each further hint.

    Args:
        error: The error.
        with_reason: Whether the reason is shown behind the message.
    """
    shows_reason = with_reason and error.reason is not Reason.UNSPECIFIED
    lines = [f"{error.message} [{error.reason.value}]" if shows_reason else error.message]
    lines += [
        f"  {violation.field}: {violation.description}"
        for violation in error.violations
        if f"{violation.field}: {violation.description}" not in error.message
        and f"{violation.field} {violation.description}" not in error.message
    ]
    lines += [
        f"  {name}: {error.metadata[name]}" for name in _SHOWN_METADATA if name in error.metadata
    ]
    if error.retry_after is not None:
        lines.append(f"  Try again in {error.retry_after:g} s.")
    return lines
