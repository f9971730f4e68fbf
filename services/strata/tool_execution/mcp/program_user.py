"""The users that programs of MCP servers run as where the service itself is root.

Processes of one user can read each other's environment and memory and can signal each other. So
each server of each project has a user id of its own. Which one is recorded as the owner of the
server's home folder: there is no second place that could disagree with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from strata.tool_execution.mcp.errors import ConnectError

PROGRAM_UID = 64_178
"""The first of them, next to that of jailed tools: between the ranges for people and services."""
PROGRAM_UIDS = 1_000
_LOCK = "lock"
_TEMPORARY = "tmp"


@dataclass(frozen=True, slots=True)
class ProgramUser:
    """The user of one server's programs.

    Attributes:
        uid: User and group.
        home: Its home folder, in which npm, uv and others keep their caches.
    """

    uid: int
    home: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that name the user and its folders.

        Temporary files are below the home folder: the machine's folder for them is everybody's.
        """
        return {
            "HOME": str(self.home),
            "USER": "strata-mcp",
            "LOGNAME": "strata-mcp",
            "TMPDIR": str(self.home / _TEMPORARY),
        }


class ProgramUsers:
    """Assigns a user to every server. Made by `open_program_users`.

    A server keeps its user and its home folder for as long as there are user ids. When none is
    left, the server that was started longest ago and has no process loses both.

    Args:
        first_uid: The first user id.
        count: How many there are.
        homes: Folder of the home folders; services on this machine may share it.
    """

    def __init__(self, first_uid: int, count: int, homes: Path) -> None:
        self._uids = range(first_uid, first_uid + count)
        self._homes = homes
        self._assigned: Counter[int] = Counter()
        self._thread_lock = threading.Lock()

    @contextlib.contextmanager
    def assigned(self, project_id: str, server_id: str) -> Iterator[ProgramUser]:
        """Yields the user of a server, which no other server has meanwhile.

        Raises:
            ConnectError: There is no free user id.
            OSError: The home folder cannot be made.
        """
        with self._locked():
            user = self._user(project_id, server_id)
            self._assigned[user.uid] += 1
        try:
            yield user
        finally:
            with self._thread_lock:
                self._assigned[user.uid] -= 1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Excludes other threads, and other processes that share the folder."""
        with self._thread_lock, (self._homes / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _user(self, project_id: str, server_id: str) -> ProgramUser:
        # Ids come from outside of this service; a digest is a name of one component.
        digest = hashlib.sha256(f"{project_id}\0{server_id}".encode())
        home = self._homes / digest.hexdigest()[:32]
        owners = {entry.path: entry.stat().st_uid for entry in os.scandir(self._homes)}
        uid = owners.get(str(home))
        if uid is None or uid not in self._uids:
            uid = self._free(int.from_bytes(digest.digest()[:8]), set(owners.values()))
            self._make(home, uid)
        os.utime(home)
        return ProgramUser(uid, home)

    def _free(self, wanted: int, taken: set[int]) -> int:
        """Returns a user id that no server has.

        The search begins at a place that depends on the server, so that two installations on one
        machine, which do not know of each other, seldom use the same ids.
        """
        start = wanted % len(self._uids)
        for offset in range(len(self._uids)):
            uid = self._uids[(start + offset) % len(self._uids)]
            if uid not in taken:
                return uid
        return self._reclaimed()

    def _reclaimed(self) -> int:
        """Takes the user id of the server that was started longest ago and has no process."""
        busy = _users_with_processes()
        idle = [
            (status.st_mtime_ns, entry.path, status.st_uid)
            for entry in os.scandir(self._homes)
            if (status := entry.stat()).st_uid in self._uids
            and busy is not None
            and status.st_uid not in busy
            and not self._assigned[status.st_uid]
        ]
        for _, path, uid in sorted(idle):
            # Folders that are nested too deeply cannot be removed; the next server is tried then.
            with contextlib.suppress(OSError, RecursionError):
                shutil.rmtree(path)
                return uid
        raise ConnectError("as many programs run as there are user ids for them")

    @staticmethod
    def _make(home: Path, uid: int) -> None:
        """Makes a home folder; its owner is set last, as the record that it is complete."""
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        temporary = home / _TEMPORARY
        temporary.mkdir(mode=0o700)
        os.chown(temporary, uid, uid)
        os.chown(home, uid, uid)


def open_program_users(
    first_uid: int, count: int, homes: Path | None, stack: AsyncExitStack
) -> ProgramUsers | None:
    """Returns the users that programs run as; None where the service is not root.

    Args:
        first_uid: The first user id.
        count: How many there are.
        homes: Folder of the home folders; None for one that is removed with the stack.
        stack: Removes it.

    Raises:
        OSError: The folder cannot be made.
    """
    if os.geteuid() != 0:
        return None
    if homes is None:
        temporary = tempfile.TemporaryDirectory(prefix="strata-mcp-", ignore_cleanup_errors=True)
        stack.callback(temporary.cleanup)
        homes = Path(temporary.name)
    homes.mkdir(parents=True, exist_ok=True)
    # It can be passed through, and not listed.
    homes.chmod(0o711)
    return ProgramUsers(first_uid, count, homes)


def _users_with_processes() -> set[int] | None:
    """Returns the real user ids of all processes; None where the system does not show them."""
    uids = set()
    try:
        folders = [entry for entry in os.scandir("/proc") if entry.name.isdigit()]
    except OSError:
        return None
    for folder in folders:
        # A process may have ended meanwhile.
        with contextlib.suppress(OSError):
            # The owner of the folder is root for a process that made itself undumpable.
            status = Path(folder.path, "status").read_text()
            [line] = [text for text in status.splitlines() if text.startswith("Uid:")]
            uids.add(int(line.split()[1]))
    return uids or None
