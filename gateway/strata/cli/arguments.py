"""Checks of what is typed, before anything is loaded or called."""

from __future__ import annotations

from pathlib import Path

from strata.cli.failures import UsageError


def named(text: str) -> str:
    """Returns a name or an id.

    Raises:
        UsageError: It is blank, as a variable of a shell is that was never set.
    """
    if not text.strip():
        raise UsageError("The name is blank.")
    return text


def folder_of_option(text: str) -> Path:
    """Returns the data folder that an option names.

    Raises:
        UsageError: It is blank; as a path that would be the working directory.
    """
    if not text.strip():
        raise UsageError("--data names no folder: it is blank.")
    return Path(text)
