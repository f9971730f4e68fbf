"""An exclusive lock that allows one process per folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import IO

from strata.client.data_folder import lock_holder, read_lock_note
from strata.protocol.errors import FailedPreconditionError, Reason

_LOCK_ATTEMPTS = 5
_LOCK_PAUSE_SECONDS = 0.02


class FolderLock:
    """An exclusive lock on a folder, held by one process.

    It is a lock of the kernel (`flock`), so it cannot become stale; the text of the file only names
    the holder.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._file: IO[str] | None = None

    def acquire(self, note: str = "") -> None:
        """Takes the lock.

        Args:
            note: Information about the holder for other processes, such as an address.

        Raises:
            FailedPreconditionError: Another process holds the lock; the message names its pid.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        file = os.fdopen(descriptor, "r+")
        if not _lock_exclusively(file):
            pid, note = read_lock_note(file)
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
        """Returns the pid of the process that holds the lock; None if it is free."""
        return lock_holder(self._path)

    def annotate(self, note: str) -> None:
        """Replaces the note that is stored with the pid. The lock must be held."""
        assert self._file is not None
        text = f"{os.getpid()}\n{note}\n".encode()
        # Written before truncating, so that a concurrent reader always finds a holder.
        os.pwrite(self._file.fileno(), text, 0)
        os.ftruncate(self._file.fileno(), len(text))

    def release(self) -> None:
        """Releases the lock; does nothing if it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock_exclusively(file: IO[str]) -> bool:
    for _ in range(_LOCK_ATTEMPTS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_PAUSE_SECONDS)  # `holder` of another process locks it for a moment
    return False
