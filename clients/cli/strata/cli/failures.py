"""Error messages and exit codes of failed commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from strata.client.errors import UnreachableError
from strata.protocol.errors import Reason, StrataError, WrongSettingError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

# Metadata worth printing; the rest repeats the message or is for programs.
_PRINTED_METADATA = ("incident_id",)


class UsageError(StrataError):
    """The arguments of a command are wrong."""

    status = "INVALID_ARGUMENT"
    default_reason = Reason.INVALID_FIELD


def reported_error(error: BaseException) -> StrataError | None:
    """Returns the error to print; None for a defect, which must show its traceback."""
    if isinstance(error, StrataError):
        return error
    if isinstance(error, BaseExceptionGroup):
        leaves = list(_leaves(error))
        if all(isinstance(leaf, StrataError) for leaf in leaves):
            first: StrataError = leaves[0]  # type: ignore[assignment]
            return first
    return None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for exception in group.exceptions:
        if isinstance(exception, BaseExceptionGroup):
            yield from _leaves(exception)
        else:
            yield exception


def exit_code_of(error: StrataError) -> int:
    """Returns the exit code of a command that failed with this error."""
    if isinstance(error, UnreachableError):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(error, UsageError | WrongSettingError) else EXIT_FAILURE


def error_lines(error: StrataError) -> list[str]:
    """Returns the message with its reason, and a line for each invalid field."""
    own = isinstance(error, UnreachableError | UsageError | WrongSettingError)
    reason = "" if own or error.reason is Reason.UNSPECIFIED else f" [{error.reason.value}]"
    lines = [f"{error.message}{reason}"]
    lines += [
        f"  {violation.field}: {violation.description}"
        for violation in error.violations
        if f"{violation.field}: {violation.description}" not in error.message
        and f"{violation.field} {violation.description}" not in error.message
    ]
    lines += [
        f"  {name}: {error.metadata[name]}" for name in _PRINTED_METADATA if name in error.metadata
    ]
    if error.retry_after is not None:
        lines.append(f"  Try again in {error.retry_after:g} s.")
    return lines


def show_error(error: StrataError) -> None:
    """Prints the error to standard error."""
    from strata.cli.output import error_console, safe  # noqa: PLC0415 - loads rich

    first, *rest = error_lines(error)
    console = error_console()
    sys.stdout.flush()
    console.print("Error: ", style="bold red", end="")
    console.print(safe(first), soft_wrap=True)
    for line in rest:
        console.print(safe(line), soft_wrap=True)
