"""Runs `strata up` in a child process, which tests may kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

import strata
from doubles.model_server import ModelServer
from strata.client.data_folder import Runtime
from strata.shared.logs import LogFormat, LogLevel
from strata.standalone.compose.local import DEFAULT_LOG_FORMAT, DEFAULT_LOG_LEVEL
from strata.standalone.data_folder import DataFolder
from whole_system import Shape, System

# Up to eight processes start at the same time, on a machine that other tests use as well.
START_S = 180.0
STOP_S = 30.0

_UP = """\
import sys
from pathlib import Path
from strata.cli.commands.up import run_up
level, form = sys.argv[3:]
split = sys.argv[2] == "split"
sys.exit(run_up(Path(sys.argv[1]), port=0, split=split, log_level=level, log_format=form))
"""


class LiveStrata:
    """Runs `strata up` on a data folder; a test can start and stop it repeatedly.

    Args:
        data: The data folder; other users must be able to pass through its parents.
        model_url: Base URL of the endpoint "openai".
        split: One process per service.
        environment: Additional variables.
        log_level: Lowest level that is logged.
        log_format: Format of the logs.
    """

    def __init__(
        self,
        data: Path,
        model_url: str,
        *,
        split: bool = False,
        environment: Mapping[str, str] | None = None,
        log_level: LogLevel = DEFAULT_LOG_LEVEL,
        log_format: LogFormat = DEFAULT_LOG_FORMAT,
    ) -> None:
        self.data = data
        self.folder = DataFolder(data)
        self.split = split
        self._options = ["split" if split else "single", log_level, log_format]
        self._log = data.with_name(f"{data.name}.log")
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(data.parent),
            "PYTHONPATH": os.pathsep.join(str(Path(part).parent) for part in strata.__path__),
            "PYTHONUNBUFFERED": "1",
            "STRATA_LOCAL_DEMO": "off",
            "OPENAI_BASE_URL": model_url,
            "OPENAI_API_KEY": "key",
            "STRATA_AGENT_LOOP_DEFAULT_MODEL": "openai/test-model",
            # Tests of this limit set it themselves.
            "STRATA_GATEWAY_CALLS_PER_SECOND": "0",
            **(environment or {}),
        }

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The main process."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def runs(self) -> bool:
        """Whether the main process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Id of the main process."""
        return self.process.pid

    @property
    def runtime(self) -> Runtime:
        """The address and the processes, read from the file that the running Strata writes."""
        runtime = self.folder.running()
        assert runtime is not None, self.log
        return runtime

    @property
    def key(self) -> str:
        """The API key that the first start made."""
        return (self.folder.secrets / "api-key").read_text()

    @property
    def organization_key(self) -> str:
        """The organization key that the first start made."""
        return (self.folder.secrets / "organization-key").read_text()

    @property
    def admin_url(self) -> str:
        """URL of the database, as the superuser."""
        password = (self.folder.postgres / "superuser.password").read_text().strip()
        port = int((self.folder.postgres / "port").read_text())
        return f"postgresql://postgres:{password}@127.0.0.1:{port}/strata"

    @property
    def log(self) -> str:
        """The output of the main process since the first start, or since `skip_log`."""
        if not self._log.exists():
            return ""
        return self._log.read_bytes()[self._log_start :].decode(errors="replace")

    def skip_log(self) -> None:
        """Removes the output so far from `log`."""
        self._log_start = self._log.stat().st_size if self._log.exists() else 0

    def incidents(self) -> str:
        """Returns the unexpected errors that the services have logged."""
        texts = []
        for log in sorted((self.data / "logs").rglob("*.log")):
            _, mark, after = log.read_text(errors="replace").partition("incident-")
            texts += [f"{log.stem}: {mark}{after[:4_000]}"] if mark else []
        return "\n".join(texts)

    def launch(self) -> subprocess.Popen[bytes]:
        """Starts another `strata up` on the folder without waiting; its output is piped."""
        return subprocess.Popen(
            self._command(), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    async def start(self) -> None:
        """Starts the process, and returns when it accepts calls."""
        assert not self.runs, "started already"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        async with asyncio.timeout(START_S):
            while self.folder.running() is None:
                assert self._process.poll() is None, f"strata up ended:\n{self.log}"
                await asyncio.sleep(0.02)

    def tree(self) -> list[psutil.Process]:
        """Returns the main process and all processes below it."""
        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]

    async def kill(self) -> list[psutil.Process]:
        """Kills the whole tree with SIGKILL; returns the processes that were killed."""
        killed = self.tree()
        for process in killed:
            _kill(process)
        await asyncio.to_thread(self.process.wait, STOP_S)
        await asyncio.to_thread(psutil.wait_procs, killed, STOP_S)
        return killed

    async def stop(self, how: signal.Signals = signal.SIGTERM, patience: float = STOP_S) -> int:
        """Sends a signal and returns the exit code.

        Raises:
            AssertionError: The process does not end within `patience` seconds; it is killed.
        """
        process = self.process
        if process.poll() is None:
            process.send_signal(how)
        try:
            return await asyncio.to_thread(process.wait, patience)
        except subprocess.TimeoutExpired:
            await self.kill()
            raise AssertionError(f"did not end in {patience} s: {self.log}") from None

    async def stop_whole(self, patience: float = STOP_S) -> None:
        """Stops Strata, and asserts that all its processes have ended."""
        family = self.tree()
        await self.stop(patience=patience)
        assert await still_running(family, 10.0) == []

    async def close(self) -> None:
        """Kills all processes that still run."""
        if self.runs:
            await self.kill()

    def _command(self) -> list[str]:
        return [sys.executable, "-c", _UP, str(self.data), *self._options]


class LiveSystem(LiveStrata):
    """A `LiveStrata` with a client as in `whole_system`.

    Args:
        data: See `LiveStrata`.
        model: The model server of the endpoint "openai".
        split: See `LiveStrata`.
        environment: See `LiveStrata`.
        log_level: See `LiveStrata`.
        log_format: See `LiveStrata`.
    """

    def __init__(
        self,
        data: Path,
        model: ModelServer,
        *,
        split: bool = False,
        environment: Mapping[str, str] | None = None,
        log_level: LogLevel = DEFAULT_LOG_LEVEL,
        log_format: LogFormat = DEFAULT_LOG_FORMAT,
    ) -> None:
        super().__init__(
            data,
            model.openai_url,
            split=split,
            environment=environment,
            log_level=log_level,
            log_format=log_format,
        )
        self.model = model

    async def start_system(self) -> System:
        """Starts Strata like `start`, and returns a client; the caller closes its channel."""
        await self.start()
        return self.connect()

    def connect(self) -> System:
        """Returns a client of the running system; the caller closes its channel."""
        shape = Shape.SOCKETS if self.split else Shape.IN_PROCESS
        return System(shape, self.runtime.address, self.key, "", self.model)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns the processes that still run; a zombie does not."""
    running = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


async def still_running(processes: list[psutil.Process], within: float) -> list[psutil.Process]:
    """Waits until all processes have ended; returns those that run after `within` seconds."""
    until = time.monotonic() + within
    running = alive(processes)
    while running and time.monotonic() < until:
        await asyncio.sleep(0.05)
        running = alive(running)
    return running


def using(folder: Path) -> list[psutil.Process]:
    """Returns the processes whose command line contains a folder."""
    pids = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if any(str(folder) in word for word in words):
            pids.append(process)
    return alive(pids)
