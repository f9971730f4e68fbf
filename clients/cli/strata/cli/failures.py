"""Error messages and exit codes of failed commands."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator

from strata.client.errors import UnreachableError
from strata.protocol import error_text
from strata.protocol.errors import Reason, StrataError, WrongSettingError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

_WRONG_PATH = {errno.ENAMETOOLONG, errno.ELOOP}
_MOST_NAME_CHARS = 200
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class UsageError(StrataError):
    """The arguments of a command are wrong."""

    status = "INVALID_ARGUMENT"
    default_reason = Reason.INVALID_FIELD


class OutputError(StrataError):
    """The output of a command cannot be written."""


def reported_error(error: BaseException) -> StrataError | None:
    """Returns the error to print; None for a defect, which must show its traceback."""
    if isinstance(error, BaseExceptionGroup):
        reported = [reported_error(leaf) for leaf in _leaves(error)]
        return reported[0] if None not in reported else None
    if isinstance(error, StrataError):
        return error
    if isinstance(error, UnicodeEncodeError) and _is_undecoded(error):
        return UsageError(
            "An argument, a line or the name of a file has bytes that are not UTF-8; Strata stores"
            " text in UTF-8 only."
        )
    if isinstance(error, OSError) and error.errno in _WRONG_PATH:
        name = str(error.filename or "")
        return UsageError(f"{error.strerror}: {name[:_MOST_NAME_CHARS]}")
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return OutputError(f"The output cannot be written: {error.strerror}.")
    return None


def _is_undecoded(error: UnicodeEncodeError) -> bool:
    """Whether the text has bytes, of the command line or a file system, that are not UTF-8."""
    return all("\udc80" <= char <= "\udcff" for char in error.object[error.start : error.end])


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
    own = isinstance(error, UnreachableError | UsageError | WrongSettingError | OutputError)
    return error_text.error_lines(error, with_reason=not own)


def show_error(error: StrataError) -> None:
    """Prints the error to standard error."""
    from strata.cli.output import error_console, safe  # noqa: PLC0415 - loads rich

    first, *rest = error_lines(error)
    console = error_console()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    console.print("Error: ", style="bold red", end="")
    console.print(safe(first), soft_wrap=True)
    for line in rest:
        console.print(safe(line), soft_wrap=True)
