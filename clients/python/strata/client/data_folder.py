"""Reads the data folder of a local Strata: its address, its holder and its keys."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from strata.client.settings import default_data_folder
from strata.protocol.errors import FailedPreconditionError, Reason


@dataclass(frozen=True)
class Runtime:
    """The published state of a running Strata.

    Attributes:
        pid: The process that holds the folder.
        address: `host:port` of its gateway.
        processes: The pids of its children by name.
        http_url: Base URL of its HTTP port; empty if it has none.
    """

    pid: int
    address: str
    processes: Mapping[str, int] = field(default_factory=dict)
    http_url: str = ""


class DataFolderReader:
    """Reads a data folder, which may not exist; changes nothing in it.

    Args:
        path: The folder; by default `default_data_folder`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = (path if path is not None else default_data_folder()).absolute()

    @property
    def secrets(self) -> Path:
        """The folder of passwords and keys."""
        return self.path / "secrets"

    @property
    def lock_file(self) -> Path:
        """The file that the process that runs on the folder holds locked."""
        return self.path / "lock"

    @property
    def runtime_file(self) -> Path:
        """The file with the published state of that process, which holds it locked as well."""
        return self.path / "runtime.json"

    def running(self) -> Runtime | None:
        """Returns the state that the process that uses the folder has published.

        Returns None if there is no such process, or if it has not published its state yet.

        Raises:
            FailedPreconditionError: The path is not a folder.
        """
        self.check_is_folder()
        try:
            # The lock of the folder does not say whose file this is: a process that has just taken
            # it may not have removed the file of one that was killed.
            with self.runtime_file.open("r") as file:
                return Runtime(**json.load(file)) if _is_locked(file) else None
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def holder(self) -> int | None:
        """Returns the pid of the process that uses the folder; None if there is none.

        Raises:
            FailedPreconditionError: The path is not a folder.
        """
        self.check_is_folder()
        return lock_holder(self.lock_file)

    def check_is_folder(self) -> None:
        """Checks that the path is a folder, or could become one.

        Raises:
            FailedPreconditionError: The path, or a parent of it, is a file.
        """
        for path in (self.path, *self.path.parents):
            if path.exists():
                if path.is_dir():
                    return
                raise FailedPreconditionError(
                    f"the data folder {self.path} cannot be used: {path} is a file. Name a folder,"
                    " which need not exist.",
                    reason=Reason.IN_USE,
                    metadata={"folder": str(self.path)},
                )


def lock_holder(path: Path) -> int | None:
    """Returns the pid of the process that holds a lock file (`flock`); None if it is free."""
    try:
        with path.open("r") as file:
            if not _is_locked(file):
                return None
            pid, _ = read_lock_note(file)
            return int(pid) if pid.isdigit() else None
    except FileNotFoundError:
        return None


def _is_locked(file: IO[str]) -> bool:
    """Returns whether another process holds an exclusive lock (`flock`) on an open file."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def read_lock_note(file: IO[str]) -> tuple[str, str]:
    """Returns the pid of the holder and the note from a lock file."""
    lines = [*file.read().splitlines(), "", ""]
    return lines[0], lines[1]
