"""Operating-system users for the programs of MCP servers, if the service runs as root.

Processes of one user can read each other's environment and memory and can send each other signals.
So each server of each project gets its own user id. It is recorded only as the owner of the
server's home folder, so that no second record can disagree.
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

_LOCK = "lock"
_TEMPORARY = "tmp"


@dataclass(frozen=True, slots=True)
class ProgramUser:
    """The user of one server's programs.

    Attributes:
        uid: User id and group id.
        home: Its home folder, which also holds caches of npm, uv and others.
    """

    uid: int
    home: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables for the user and its folders.

        Temporary files are below the home folder, because all users can access the system's folder.
        """
        return {
            "HOME": str(self.home),
            "USER": "strata-mcp",
            "LOGNAME": "strata-mcp",
            "TMPDIR": str(self.home / _TEMPORARY),
        }


class ProgramUsers:
    """Assigns a user to every server. Create it with `open_program_users`.

    A server keeps its user and its home folder. If no user id is free, the server without running
    processes that was started longest ago loses both.

    Args:
        first_uid: The first user id.
        count: Number of user ids.
        homes: Folder of the home folders; several services on this machine may share it.
    """

    def __init__(self, first_uid: int, count: int, homes: Path) -> None:
        self._uids = range(first_uid, first_uid + count)
        self._homes = homes
        self._assigned: Counter[int] = Counter()
        self._thread_lock = threading.Lock()

    @contextlib.contextmanager
    def assigned(self, project_id: str, server_id: str) -> Iterator[ProgramUser]:
        """Yields the user of a server; no other server gets it meanwhile.

        Raises:
            ConnectError: No user id is free.
            OSError: The home folder cannot be created.
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
        # Ids come from outside of this service. A hash is always a single path component.
        digest = hashlib.sha256(f"{project_id}\0{server_id}".encode())
        home = self._homes / digest.hexdigest()[:32]
        owners = {entry.path: entry.stat().st_uid for entry in os.scandir(self._homes)}
        uid = owners.get(str(home))
        if uid is None or uid not in self._uids:
            uid = self._free(int.from_bytes(digest.digest()[:8]), set(owners.values()))
            self._make(home, uid)
        os.utime(home)
        return ProgramUser(uid, home)

    def _free(self, first_uid: int, used_uids: set[int]) -> int:
        """Returns a user id that no server has.

        The search starts at an offset that depends on the server, so that two independent
        installations on one machine rarely use the same ids.
        """
        start = first_uid % len(self._uids)
        for offset in range(len(self._uids)):
            uid = self._uids[(start + offset) % len(self._uids)]
            if uid not in used_uids:
                return uid
        return self._reclaimed()

    def _reclaimed(self) -> int:
        """Takes the user id of the server without processes that was started longest ago."""
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
            # Folders that are nested too deeply cannot be removed; then the next server is tried.
            with contextlib.suppress(OSError, RecursionError):
                shutil.rmtree(path)
                return uid
        raise ConnectError("all user ids for programs are in use")

    @staticmethod
    def _make(home: Path, uid: int) -> None:
        """Creates a home folder. Its owner is set last, which marks it as complete."""
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        temporary = home / _TEMPORARY
        temporary.mkdir(mode=0o700)
        os.chown(temporary, uid, uid)
        os.chown(home, uid, uid)


def open_program_users(
    first_uid: int, count: int, homes: Path | None, stack: AsyncExitStack
) -> ProgramUsers | None:
    """Returns the users that programs run as; None if the service is not root.

    Args:
        first_uid: The first user id.
        count: Number of user ids.
        homes: Folder of the home folders; None for a temporary folder.
        stack: Removes the temporary folder.

    Raises:
        OSError: The folder cannot be created.
    """
    if os.geteuid() != 0:
        return None
    if homes is None:
        temporary = tempfile.TemporaryDirectory(prefix="strata-mcp-", ignore_cleanup_errors=True)
        stack.callback(temporary.cleanup)
        homes = Path(temporary.name)
    homes.mkdir(parents=True, exist_ok=True)
    # Other users can enter the folder but not list it.
    homes.chmod(0o711)
    return ProgramUsers(first_uid, count, homes)


def _users_with_processes() -> set[int] | None:
    """Returns the real user ids of all processes; None if the system does not show them."""
    uids = set()
    try:
        folders = [entry for entry in os.scandir("/proc") if entry.name.isdigit()]
    except OSError:
        return None
    for folder in folders:
        # The process may have ended.
        with contextlib.suppress(OSError):
            # Not the owner of the folder, which is root for a process that is not dumpable.
            status = Path(folder.path, "status").read_text()
            [line] = [text for text in status.splitlines() if text.startswith("Uid:")]
            uids.add(int(line.split()[1]))
    return uids or None
