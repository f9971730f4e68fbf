"""The embedded PostgreSQL server: a supervised child process with its data in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

from strata.protocol.errors import FailedPreconditionError, Reason, UnavailableError
from strata.standalone.files import damaged_secret, read_secret
from strata.standalone.locks import FolderLock
from strata.standalone.ports import pick_port
from strata.standalone.postgres_binaries import (
    find_binaries,
    major_version,
    run,
    unprivileged_identity,
)
from strata.standalone.supervisor import (
    Command,
    ProcessSupervisor,
    spawn,
    tail,
    until_ready,
)

SUPERUSER = "postgres"
_START_SECONDS = 60.0
_RECOVERY_SECONDS = 600.0
"""Long, because a server that is ended during recovery starts again from the same checkpoint."""
_STOP_SECONDS = 30.0
# Messages of PostgreSQL when a former server on the same data has not quite ended.
_PREDECESSOR = (
    'lock file "postmaster.pid" already exists',
    "pre-existing shared memory block",
)
# Small when idle, because shared_buffers is mapped at first use. Durability has the defaults.
_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "64MB",
    "max_connections": "120",
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Without them PostgreSQL starts no process that waits for subscriptions.
    "max_logical_replication_workers": "0",
    "autovacuum_max_workers": "2",
    # A table is analysed each time a fifth of it has changed (a tenth by default), which reads and
    # sorts up to 30,000 rows. Estimates follow the size of the table in any case.
    "autovacuum_analyze_scale_factor": "0.2",
    "io_method": "sync",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %u@%d ",
    "log_checkpoints": "off",
    "password_encryption": "scram-sha-256",
    "unix_socket_directories": "",
}
_SINCE_MAJOR = {"io_method": 18}


class EmbeddedPostgres:
    """A PostgreSQL server on 127.0.0.1 that ends with this process.

    All connections use TCP and a password (SCRAM): other users of the machine can reach the port
    but not the data. PostgreSQL refuses to run as root; the server then runs as another user,
    who owns `folder/data`.

    Args:
        folder: Folder for data, password and log; created if missing.
        settings: Further settings of the server, by name.
        watchdog: See `supervisor.spawn`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        watchdog: bool | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self._data = self.folder / "data"
        self._settings = {**_SETTINGS, **(settings or {})}
        self._watchdog = watchdog
        self._identity = unprivileged_identity()
        self._log_path = self.folder / "postgres.log"
        self._lock = FolderLock(self.folder / "lock", f"the database folder {self.folder}")
        self._supervisor = ProcessSupervisor(
            "PostgreSQL",
            self._launch,
            # SIGINT is PostgreSQL's fast shutdown, which ends sessions and loses no data.
            stop_signal=signal.SIGINT,
            stop_timeout=_STOP_SECONDS,
            log_path=self._log_path,
        )
        self._binaries = Path()
        self._port: int | None = None

    @property
    def is_new(self) -> bool:
        """Whether it has no data yet."""
        return not self._data.exists()

    @property
    def port(self) -> int:
        """The TCP port on loopback; the same after a restart, where it is still free."""
        if self._port is None:
            raise UnavailableError("PostgreSQL is not started")
        return self._port

    @property
    def pid(self) -> int | None:
        """The server's pid while it runs."""
        return self._supervisor.pid

    @property
    def restarts(self) -> int:
        """How often the server crashed and was restarted."""
        return self._supervisor.restarts

    def url(
        self, *, user: str = SUPERUSER, password: str | None = None, database: str = "postgres"
    ) -> str:
        """Returns a connection URL.

        Args:
            user: The role; by default the superuser.
            password: The role's password; required for all roles except the superuser.
            database: The database.
        """
        if password is None:
            if user != SUPERUSER:
                raise ValueError(f"the password of {user} is not known here; pass it")
            password = self._superuser_password()
        return _url(user, password, self.port, database)

    def url_of_running(self, *, database: str) -> str:
        """Returns the superuser's URL of the server that another process runs on the folder.

        Raises:
            UnavailableError: No server has run on it.
        """
        port = self._last_port()
        if port is None:
            raise UnavailableError(f"PostgreSQL has not run on {self.folder}")
        return _url(SUPERUSER, self._superuser_password(), port, database)

    async def start(self) -> None:
        """Starts the server and waits until it serves; creates its data if there is none.

        Raises:
            FailedPreconditionError: Another process uses the folder, PostgreSQL is not installed,
                or the data is of another major version.
            UnavailableError: The server did not start; the message ends with its log.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.acquire()
        try:
            await asyncio.to_thread(self._prepare)
            self._port = pick_port(self._last_port())
            await self._start_on_a_free_port()
        except BaseException:
            self._lock.release()
            raise
        (self.folder / "port").write_text(f"{self._port}\n")

    async def stop(self) -> None:
        """Ends all sessions and shuts the server down gracefully."""
        await self._supervisor.stop()
        self._lock.release()

    async def restart(self) -> None:
        """Shuts the server down gracefully and starts it again on the same port."""
        await self._supervisor.restart()

    async def wait_serving(self) -> None:
        """Waits until the server serves; see `ProcessSupervisor.wait_serving`."""
        await self._supervisor.wait_serving()

    @property
    def password_file(self) -> Path:
        """File with the password of the superuser."""
        return self.folder / "superuser.password"

    def _superuser_password(self) -> str:
        password = read_secret(self.password_file)
        if password is None:
            raise damaged_secret(self.password_file, "it is empty or not text")
        return password

    def _last_port(self) -> int | None:
        try:
            return int((self.folder / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _own(self, path: Path) -> None:
        if self._identity.uid >= 0:
            os.chown(path, self._identity.uid, self._identity.gid)

    def _prepare(self) -> None:
        if self._identity.uid >= 0:
            # The server's user may pass through and owns `data` only: root writes and renames
            # files in this folder, so no other user may create files or links in it.
            self.folder.chmod(0o711)
        self._binaries = find_binaries(self.folder, self._identity)
        major = major_version(self._binaries, self._identity, self.folder)
        for name, since in _SINCE_MAJOR.items():
            if major < since:
                self._settings.pop(name, None)
        version = self._data / "PG_VERSION"
        if not version.exists():
            self._check_is_new()
            self._make_data()
        elif version.read_text().strip() != str(major):
            raise FailedPreconditionError(
                f"{self._data} was written by PostgreSQL {version.read_text().strip()}, but "
                f"PostgreSQL {major} is installed. Write a backup with the release that wrote the"
                " folder (`strata backup`), and make a new folder from it with this one (`strata"
                " restore`).",
                reason=Reason.SCHEMA_OUTDATED,
            )

    def _check_is_new(self) -> None:
        """Checks that there is no data, which `_make_data` would delete.

        It renames the folder when it is complete, so an interrupted start leaves no other one.
        """
        if self._data.exists() and any(self._data.iterdir()):
            raise FailedPreconditionError(
                f"{self._data} is not a complete database: it has no file PG_VERSION. Restore the"
                " folder from a copy, or make a new one from a backup (`strata restore`).",
                reason=Reason.CORRUPT_DATA,
                metadata={"folder": str(self._data)},
            )

    def _make_data(self) -> None:
        """Creates the database cluster, in a temporary folder first because of crashes."""
        password = secrets.token_urlsafe(32)
        building = self.folder / "data.new"
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(self._data, ignore_errors=True)
        building.mkdir(mode=0o700)
        self._own(building)
        for_initdb = self.folder / "password.new"
        _write_secret(for_initdb, password)
        self._own(for_initdb)
        program = [
            *(str(self._binaries / "initdb"), "-D", str(building), "-U", SUPERUSER),
            *("--auth=scram-sha-256", f"--pwfile={for_initdb}", "--encoding=UTF8"),
            *("--text-search-config=simple", *self._locale()),
        ]
        process = run(program, self._identity, self.folder)
        for_initdb.unlink()
        if process.returncode != 0:
            raise UnavailableError(f"initdb failed: {process.stderr.decode('utf-8', 'replace')}")
        # The password is stored first, because data without its password could not be used.
        _write_secret(self.password_file, password)
        building.rename(self._data)

    def _locale(self) -> list[str]:
        """Returns options for the same collation and case rules on every machine."""
        if major_version(self._binaries, self._identity, self.folder) < 17:
            return ["--locale=C"]  # the builtin provider came with 17
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]

    async def _start_on_a_free_port(self) -> None:
        for _ in range(3):
            try:
                await self._supervisor.start()
                break
            except UnavailableError:
                # Retry only if another process took the port after it was picked.
                if pick_port(self._port) == self._port:
                    raise
                self._port = pick_port()
        else:
            raise UnavailableError("no TCP port on 127.0.0.1 stays free")

    def _command(self) -> Command:
        program = [
            *(str(self._binaries / "postgres"), "-D", str(self._data)),
            *("-p", str(self.port), "-c", "listen_addresses=127.0.0.1"),
        ]
        for name, setting in self._settings.items():
            program += ["-c", f"{name}={setting}"]
        return Command(
            program=program,
            folder=self.folder,
            log_path=self._log_path,
            environment={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            identity=self._identity,
            death_signal=signal.SIGINT,
        )

    async def _launch(self) -> subprocess.Popen[bytes]:
        until = time.monotonic() + _START_SECONDS
        while True:
            self._clear_predecessor()
            logged = self._log_path.stat().st_size if self._log_path.exists() else 0
            process = spawn(self._command(), watchdog=self._watchdog)
            ready = partial(self._is_ready, process)
            if await until_ready(process, ready, stop=signal.SIGINT, within=_RECOVERY_SECONDS):
                return process
            output = tail(self._log_path, max(1, self._log_path.stat().st_size - logged))
            if not any(sign in output for sign in _PREDECESSOR) or time.monotonic() > until:
                raise UnavailableError(f"PostgreSQL did not start: {output[-2000:]}")
            await asyncio.sleep(0.1)

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Returns whether the postmaster's file has our pid (line 1) and a ready state (line 8)."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        if len(lines) < 8 or lines[7].strip() != "ready":
            return False
        # With the watchdog, the postmaster is a grandchild of this process.
        return process.stdin is not None or int(lines[0]) == process.pid

    def _clear_predecessor(self) -> None:
        """Ends a former postmaster on the same data, or removes its pid file.

        This process holds the folder's lock, so such a postmaster has no supervisor. If it runs, it
        is shut down. If it is dead, its pid file is removed: PostgreSQL would refuse to start if
        any process now has that pid, which is likely after a restart of a container.
        """
        path = self._data / "postmaster.pid"
        try:
            pid = int(path.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        if str(self._data) in _command_line(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        else:
            path.unlink(missing_ok=True)


def _url(user: str, password: str, port: int, database: str) -> str:
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"postgresql://{login}@127.0.0.1:{port}/{quote(database, safe='')}"


def _write_secret(path: Path, secret: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secret}\n")
        file.flush()
        os.fsync(file.fileno())


def _command_line(pid: int) -> str:
    """Returns the command line of a process; empty if there is no such process."""
    process = Path(f"/proc/{pid}")
    if Path("/proc/self").exists():
        try:
            return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
    listing = subprocess.run(  # noqa: S603 - a fixed program, a number
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
    )
    return listing.stdout.decode("utf-8", "replace")
