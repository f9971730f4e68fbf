"""Atomic writing of small private files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata.protocol.errors import UnavailableError


def write_atomically(path: Path, text: str) -> None:
    """Replaces a private file (0600) atomically: after a crash it has the old or the new text."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_path(path.parent)


@contextmanager
def reported_errors(what: str) -> Iterator[None]:
    """Reports errors of the file system as errors for a person.

    Args:
        what: What failed then: "The backup was not written".

    Raises:
        UnavailableError: A file cannot be read or written; the message names it.
    """
    try:
        yield
    except OSError as error:
        named = f" ({error.filename})" if error.filename else ""
        raise UnavailableError(f"{what}: {error.strerror or error}{named}.") from error


def publish_folder(partial: Path, target: Path) -> None:
    """Gives a complete folder its name, atomically.

    Args:
        partial: The folder, beside the target.
        target: Its name; there may be an empty folder of that name.
    """
    partial.replace(target)
    sync_path(target.parent)


def sync_path(path: Path) -> None:
    """Waits until the bytes of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
