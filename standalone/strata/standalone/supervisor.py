"""Supervises one engine as a child process: starts it and restarts it when it crashes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from strata.protocol.errors import FailedPreconditionError, Reason, UnavailableError
from strata.shared.logs import get_logger
from strata.standalone.locks import FolderLock

__all__ = [
    "Command",
    "FolderLock",
    "Identity",
    "ProcessSupervisor",
    "end",
    "end_of",
    "launch",
    "open_log",
    "spawn",
    "tail",
    "until_ready",
    "wait_exit",
]

_LAUNCHER = Path(__file__).with_name("launcher.py")
_BACK_OFF_SECONDS = (0.0, 0.1, 0.3, 1.0, 2.0, 5.0)
_START_SECONDS = 60.0
_START_PATIENCE_SECONDS = 10.0
_OFTEN_WITHIN_SECONDS = 60.0
_LONG_PAUSE_SECONDS = 15.0
_LOG_LIMIT_BYTES = 8 << 20

_log = get_logger(__name__)


@dataclass(frozen=True)
class Identity:
    """The user that an engine runs as; `uid` -1 keeps the current one."""

    uid: int = -1
    gid: int = -1


@dataclass(frozen=True)
class Command:
    """One launch of an engine.

    Attributes:
        program: Absolute path and arguments.
        folder: Working directory.
        log_path: File for the engine's output; rotated once at 8 MiB.
        environment: The whole environment. Nothing is inherited, so that engines get none of the
            user's API keys.
        identity: The user to run as.
        death_signal: Sent to the engine when the supervisor dies.
    """

    program: Sequence[str]
    folder: Path
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    identity: Identity = Identity()
    death_signal: signal.Signals = signal.SIGTERM


def spawn(command: Command, *, watchdog: bool | None = None) -> subprocess.Popen[bytes]:
    """Starts the command bound to this process: it ends when this process ends.

    On Linux the kernel sends the signal when the spawning *thread* ends: call this from a thread
    that lives as long as the engine should.

    Args:
        command: The command.
        watchdog: Use the portable watchdog instead of the kernel's parent-death signal; by
            default only if the kernel has none.
    """
    if watchdog is None:
        watchdog = sys.platform != "linux"
    mode = "watch" if watchdog else "kernel"
    with open_log(command.log_path) as log:
        return subprocess.Popen(  # noqa: S603 - programs that we name ourselves
            [*launch(mode, command.identity, command.death_signal), *command.program],
            stdin=subprocess.PIPE if watchdog else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=command.folder,
            env=dict(command.environment),
        )


def launch(mode: str, identity: Identity, death_signal: signal.Signals) -> list[str]:
    """Returns the launcher's command, to put before a program; for the modes see `launcher`."""
    return [
        *(sys.executable, "-I", "-S", str(_LAUNCHER), mode, str(os.getpid())),
        *(str(int(death_signal)), str(identity.uid), str(identity.gid), "--"),
    ]


def end_of(process: subprocess.Popen[bytes]) -> str:
    """Describes how a child ended: ``it ended with signal 7 (Bus error)``. Its log may be empty."""
    code = process.returncode
    if code < 0:
        return f"it ended with signal {-code} ({signal.strsignal(-code)})"
    return f"it ended with exit code {code}"


def open_log(path: Path) -> IO[bytes]:
    """Opens a log for appending; a log of 8 MiB or more is rotated first."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_LIMIT_BYTES:
            path.replace(path.with_suffix(".log.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(descriptor, "ab")


def tail(path: Path, size: int = 2000) -> str:
    """Returns the last `size` bytes of a log as text; empty if there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - size))
            return log.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


async def wait_exit(process: subprocess.Popen[bytes]) -> int:
    """Waits for a child without a thread: by pidfd if available, else by polling."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        while process.poll() is None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)
        return int(process.returncode)
    if process.poll() is not None:
        return int(process.returncode)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = opener(process.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


class ProcessSupervisor:
    """Keeps one child process serving until it is stopped.

    Args:
        name: Name in logs and errors.
        launch: Starts the child and returns it once it serves. It is called again after each
            unexpected end, and raises an error if the child cannot be started.
        stop_signal: Signal that requests the end of the child.
        stop_timeout: Seconds before a child that ignores the signal is killed.
        log_path: Log of the child, named in errors.
    """

    def __init__(
        self,
        name: str,
        launch: Callable[[], Awaitable[subprocess.Popen[bytes]]],
        *,
        stop_signal: signal.Signals,
        stop_timeout: float,
        log_path: Path,
    ) -> None:
        self.name = name
        self._launch = launch
        self._stop_signal = stop_signal
        self._stop_timeout = stop_timeout
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor: asyncio.Task[None] | None = None
        self._serving = asyncio.Event()
        self._failure: Exception | None = None
        self._deaths: deque[float] = deque(maxlen=len(_BACK_OFF_SECONDS))
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The child's pid while it runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Starts the child, waits until it serves, and watches it from then on."""
        if self._monitor is not None:
            raise FailedPreconditionError(f"{self.name} is already started", reason=Reason.IN_USE)
        self._failure = None
        self._process = await self._launch()
        self._serving.set()
        self._monitor = asyncio.create_task(self._watch(), name=f"supervise {self.name}")

    async def wait_serving(self) -> None:
        """Waits until the child serves (again).

        Raises:
            UnavailableError: The child keeps crashing; it is restarted after a long pause.
        """
        await self._serving.wait()
        if self._failure is not None:
            raise UnavailableError(
                f"{self.name} does not stay up: {self._failure}. Its log is {self._log_path}"
            ) from self._failure

    async def restart(self) -> None:
        """Stops the child gracefully and starts it again."""
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        """Ends the child gracefully; kills it if that takes longer than `stop_timeout`."""
        if self._monitor is not None:
            self._monitor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._monitor
            self._monitor = None
        process, self._process = self._process, None
        self._serving.clear()
        if process is not None:
            await end(process, self._stop_signal, self._stop_timeout)

    async def _watch(self) -> None:
        while self._process is not None:
            code = await wait_exit(self._process)
            self._serving.clear()
            self._process = None
            _log.warning("engine died", engine=self.name, exit_code=code, log=str(self._log_path))
            await self._revive()

    async def _revive(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            try:
                self._process = await self._launch()
            except Exception as error:  # noqa: BLE001 - supervision must not end
                _log.warning("engine not started", engine=self.name, error=str(error))
                self._failure = error
                continue
            self._failure = None
            self.restarts += 1
            self._serving.set()
            _log.info("engine restarted", engine=self.name, pid=self._process.pid)
            return

    def _pause(self) -> float:
        """Counts a crash or failed start; returns the seconds to wait before the next start.

        Restarts never stop, because the cause (a recovering database, a full disk) can disappear
        and no other process would start the child. Callers of `wait_serving` get an error
        meanwhile.
        """
        now = time.monotonic()
        self._deaths.append(now)
        recent = sum(1 for death in self._deaths if now - death < _OFTEN_WITHIN_SECONDS)
        if recent < len(_BACK_OFF_SECONDS) and not self._serving.is_set():
            return _BACK_OFF_SECONDS[recent - 1]
        self._failure = self._failure or UnavailableError(tail(self._log_path))
        _log.error("engine dies repeatedly", engine=self.name, log=str(self._log_path))
        self._serving.set()
        return _LONG_PAUSE_SECONDS


async def end(process: subprocess.Popen[bytes], how: signal.Signals, patience: float) -> None:
    """Ends a child: by signal, and by SIGKILL once `patience` seconds have passed."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            async with asyncio.timeout(patience):
                await wait_exit(process)
        except TimeoutError:
            process.kill()
            await wait_exit(process)
    if process.stdin is not None:
        process.stdin.close()


async def until_ready(
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    *,
    stop: signal.Signals,
    within: float = _START_SECONDS,
) -> bool:
    """Waits until `ready` returns True. Returns False if the child ended before.

    Args:
        process: A child that was just started.
        ready: Returns whether the child serves; called often.
        stop: Signal that ends the child on a timeout or cancellation.
        within: Time limit in seconds.

    Raises:
        UnavailableError: The child is not ready in time; it has been ended.
    """
    try:
        async with asyncio.timeout(within):
            while process.poll() is None:
                if ready():
                    return True
                await asyncio.sleep(0.01)
    except TimeoutError:
        await end(process, stop, _START_PATIENCE_SECONDS)
        raise UnavailableError(f"process {process.pid} did not become ready") from None
    except BaseException:
        await end(process, stop, _START_PATIENCE_SECONDS)
        raise
    return False
