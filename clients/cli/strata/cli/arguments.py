"""Validation of arguments, before any command module is imported."""

from __future__ import annotations

from pathlib import Path

from strata.cli.failures import UsageError

MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
"""The largest numbers that fields of requests can have."""


def nonblank_name(text: str) -> str:
    """Returns a name or an id unchanged, after checking that it is not blank.

    Raises:
        UsageError: It is blank, for example an unset shell variable.
    """
    if not text.strip():
        raise UsageError("The name is blank.")
    return text


def folder_of_option(text: str) -> Path:
    """Returns the data folder that an option names.

    Raises:
        UsageError: It is blank. `Path` would read a blank text as the working directory.
    """
    if not text.strip():
        raise UsageError("--data is blank: give the path of the data folder.")
    return Path(text)
