"""One process per folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO

from strata.shared.errors import FailedPreconditionError, Reason

_LOCK_ATTEMPTS = 5
_LOCK_PAUSE_SECONDS = 0.02


class FolderLock:
    """An exclusive lock on a folder, held by one process for as long as it lives.

    The lock is the kernel's (`flock`), so it cannot go stale; the file's text only says who
    holds it.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._file: IO[str] | None = None

    def acquire(self, note: str = "") -> None:
        """Takes the lock.

        Args:
            note: What another process should be told about the holder, such as an address.

        Raises:
            FailedPreconditionError: Another process holds it; the message names its pid.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        file = os.fdopen(descriptor, "r+")
        if not _lock_exclusively(file):
            pid, note = _holder(file)
            file.close()
            raise FailedPreconditionError(
                f"{self._what} is in use by process {pid or 'unknown'}"
                + (f" ({note})" if note else "")
                + ". Stop that process, or use another folder.",
                reason=Reason.IN_USE,
                metadata={"pid": pid, "folder": str(self._path.parent)},
            )
        self._file = file
        self.annotate(note)

    def holder(self) -> int | None:
        """Returns the pid of the process that holds the lock, None if none does."""
        try:
            with self._path.open("r") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    pid, _ = _holder(file)
                    return int(pid) if pid.isdigit() else None
                return None
        except FileNotFoundError:
            return None

    def annotate(self, note: str) -> None:
        """Replaces the note beside the pid. The lock must be held."""
        assert self._file is not None
        text = f"{os.getpid()}\n{note}\n".encode()
        # In this order, so that nobody who looks meanwhile finds a lock without a holder.
        os.pwrite(self._file.fileno(), text, 0)
        os.ftruncate(self._file.fileno(), len(text))

    def release(self) -> None:
        """Gives the lock back; does nothing if it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock_exclusively(file: IO[str]) -> bool:
    for _ in range(_LOCK_ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_PAUSE_SECONDS)  # it may only be looked at, see `holder`
    return False


def _holder(file: IO[str]) -> tuple[str, str]:
    lines = [*file.read().splitlines(), "", ""]
    return lines[0], lines[1]
