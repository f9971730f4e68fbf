"""Error messages and exit codes of failed commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from strata.client.errors import UnreachableError
from strata.protocol import error_text
from strata.protocol.errors import Reason, StrataError, WrongSettingError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3


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
    """Returns the lines of an error; the reasons of errors of this program are left out."""
    own = isinstance(error, UnreachableError | UsageError | WrongSettingError)
    return error_text.error_lines(error, with_reason=not own)


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
