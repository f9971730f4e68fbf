"""Starts and supervises the process of the embedded vector engine."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import strata
from strata.protocol.errors import UnavailableError
from strata.standalone.files import (
    REPLACED_AT_START,
    damaged_secret,
    read_secret,
    write_atomically,
)
from strata.standalone.locks import FolderLock
from strata.standalone.ports import EXIT_PORT_TAKEN, pick_port
from strata.standalone.supervisor import (
    Command,
    ProcessSupervisor,
    end_of,
    spawn,
    tail,
    until_ready,
)
from strata.standalone.vectors.disk_space import LOAD_BYTES, missing_space

_STOP_SECONDS = 20.0
_PORTS_TRIED = 3


class _PortTakenError(UnavailableError):
    """Another process listens on the port."""


class EmbeddedVectors:
    """Qdrant's engine in a child process, reachable by Qdrant's own client.

    ::

        AsyncQdrantClient(
            host=vectors.host, grpc_port=vectors.port, prefer_grpc=True, https=False,
            headers={"api-key": vectors.api_key}, check_compatibility=False,
        )

    The key goes in `headers`: the client warns about `api_key` on any plain connection, and
    loopback is one.

    Args:
        folder: Where collections, the key and the log are kept; made if missing.
        watchdog: See `supervisor.spawn`.
    """

    host = "127.0.0.1"

    def __init__(self, folder: Path, *, watchdog: bool | None = None) -> None:
        self.folder = folder.absolute()
        self._watchdog = watchdog
        self._log_path = self.folder / "vectors.log"
        self._lock = FolderLock(self.folder / "supervisor.lock", f"the vector store {self.folder}")
        self._supervisor = ProcessSupervisor(
            "vector engine",
            self._launch,
            stop_signal=signal.SIGTERM,
            stop_timeout=_STOP_SECONDS,
            log_path=self._log_path,
        )
        self._port: int | None = None
        self._api_key: str | None = None

    @property
    def port(self) -> int:
        """The TCP port on loopback; the same after a restart, where it is still free."""
        if self._port is None:
            raise UnavailableError("the vector engine is not started")
        return self._port

    @property
    def url(self) -> str:
        """`http://host:port` of the gRPC API. There is no REST API."""
        return f"http://{self.host}:{self.port}"

    @property
    def api_key(self) -> str:
        """The key that callers send as metadata `api-key`."""
        if self._api_key is None:
            raise UnavailableError("the vector engine is not started")
        return self._api_key

    @property
    def pid(self) -> int | None:
        """The child's pid while it runs."""
        return self._supervisor.pid

    @property
    def restarts(self) -> int:
        """How often the child died and was started again."""
        return self._supervisor.restarts

    async def start(self) -> None:
        """Starts the engine and returns when it serves.

        Raises:
            FailedPreconditionError: Another process uses the folder.
            UnavailableError: It did not come up; the message ends with its log.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock.acquire()
        try:
            self._api_key = self._key()
            await self._start_on_a_port()
        except BaseException:
            self._lock.release()
            raise

    async def _start_on_a_port(self) -> None:
        preferred = self._last_port()
        for left in reversed(range(_PORTS_TRIED)):
            self._port = pick_port(preferred)
            try:
                await self._supervisor.start()
            except _PortTakenError:
                # It was free when it was picked.
                preferred = None
                if not left:
                    raise
            else:
                break

    async def stop(self) -> None:
        """Flushes and ends the engine."""
        await self._supervisor.stop()
        self._lock.release()

    async def restart(self) -> None:
        """Shuts the engine down gracefully and starts it again on the same port."""
        await self._supervisor.restart()

    async def wait_serving(self) -> None:
        """Waits until the engine serves; see `ProcessSupervisor.wait_serving`."""
        await self._supervisor.wait_serving()

    def _key(self) -> str:
        path = self.folder / "api_key"
        if not path.exists():
            write_atomically(path, secrets.token_urlsafe(32))
        key = read_secret(path)
        if key is None:
            raise damaged_secret(path, "it is empty or not text", REPLACED_AT_START)
        return key

    def _last_port(self) -> int | None:
        try:
            return int(json.loads((self.folder / "server.json").read_text())["port"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def _command(self) -> Command:
        # The child does not inherit our environment, so it gets the import path explicitly.
        roots = os.pathsep.join(str(Path(part).parent) for part in strata.__path__)
        return Command(
            program=[
                *(sys.executable, "-m", "strata.standalone.vectors.server"),
                *("--folder", str(self.folder), "--port", str(self.port)),
            ],
            folder=self.folder,
            log_path=self._log_path,
            environment={"PYTHONPATH": roots, "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"},
        )

    async def _launch(self) -> subprocess.Popen[bytes]:
        # The log is on the same disk, so the process could not report this itself.
        if missing := missing_space(self.folder, LOAD_BYTES):
            raise UnavailableError(f"the vector engine is not started: {missing}")
        ready = self.folder / "server.json"
        ready.unlink(missing_ok=True)
        process = spawn(self._command(), watchdog=self._watchdog)
        if await until_ready(process, ready.exists, stop=signal.SIGTERM):
            return process
        kind = _PortTakenError if process.returncode == EXIT_PORT_TAKEN else UnavailableError
        output = tail(self._log_path)
        raise kind(f"the vector engine did not start, {end_of(process)}: {output}")
