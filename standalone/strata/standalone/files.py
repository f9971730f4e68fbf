"""Small private files: atomic writing, and reading of secrets."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strata.protocol.errors import FailedPreconditionError, Reason, UnavailableError


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


REPLACED_AT_START = "Delete this file and start Strata again, which then creates another one."
"""Remedy for a secret that nothing stored depends on."""


def read_secret(path: Path) -> str | None:
    """Returns the text of a file without space around it; None if it has none.

    Raises:
        FailedPreconditionError: The file cannot be read; the message names it.
    """
    try:
        return path.read_text("utf-8").strip() or None
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise inaccessible_secret(path, error) from error


def inaccessible_secret(path: Path, error: OSError) -> FailedPreconditionError:
    """Returns the error for a file of a secret that cannot be read or created."""
    return FailedPreconditionError(
        f"the secret {path} cannot be read or created: {error.strerror or error}. It must be a"
        " file that the user of this process can read: change its permissions, or restore it from a"
        " copy of the data folder.",
        reason=Reason.CORRUPT_DATA,
        metadata={"file": str(path)},
    )


def damaged_secret(path: Path, problem: str, remedy: str = "") -> FailedPreconditionError:
    """Returns the error for a secret that was changed.

    Args:
        path: Its file.
        problem: What is wrong with it, a clause.
        remedy: What to do, in sentences; by default to restore the file.
    """
    return FailedPreconditionError(
        f"the secret {path} is damaged: {problem}. "
        + (
            remedy
            or "Restore this file from a copy of the data folder, or make a new folder from a"
            " backup (`strata restore`)."
        ),
        reason=Reason.CORRUPT_DATA,
        metadata={"file": str(path)},
    )


@contextmanager
def reported_errors(failure: str) -> Iterator[None]:
    """Reports errors of the file system as errors for a person.

    Args:
        failure: The sentence for a failure: "The backup was not written".

    Raises:
        UnavailableError: A file cannot be read or written; the message names it.
    """
    try:
        yield
    except OSError as error:
        file_name = f" ({error.filename})" if error.filename else ""
        raise UnavailableError(f"{failure}: {error.strerror or error}{file_name}.") from error


@contextmanager
def partial_folder(partial: Path) -> Iterator[None]:
    """Yields with an empty private folder, to be filled and published; removes it after an error.

    It is locked, since two processes would mix their files in it. The lock ends with the process,
    so what an interrupted one has left is removed.

    Args:
        partial: The folder; its parents are created if missing.

    Raises:
        FailedPreconditionError: Another process fills the folder.
    """
    partial.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _lock_folder(partial)
    try:
        _empty(partial)
        partial.chmod(0o700)
        yield
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _lock_folder(path: Path) -> int:
    """Creates a folder if it is missing and locks it; returns the descriptor with the lock."""
    while True:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise FailedPreconditionError(
                f"Another process is writing {path}. Wait for it, or choose another name.",
                reason=Reason.IN_USE,
                metadata={"folder": str(path)},
            ) from None
        # Its former holder has removed or renamed it.
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


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
