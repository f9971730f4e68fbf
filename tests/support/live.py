"""`strata up` as a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

import strata
from doubles.model_server import ModelServer
from strata.shared.logs import LogFormat, LogLevel
from strata.standalone.compose.local import DEFAULT_LOG_FORMAT, DEFAULT_LOG_LEVEL
from strata.standalone.data_folder import DataFolder
from whole_system import Shape, System

START_S = 90.0
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
    """Strata on a data folder, started and stopped as often as a test likes.

    Args:
        data: The data folder; others must be able to pass through its parents.
        model: Answers for the endpoint "openai".
        split: One process per service.
        environment: Further variables.
        log_level: Lowest level that is logged.
        log_format: Form of the logs.
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
        self.data = data
        self.model = model
        self._options = ["split" if split else "single", log_level, log_format]
        self._split = split
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log = data.parent / f"{data.name}.log"

    @property
    def log(self) -> str:
        """What the process has printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def pid(self) -> int:
        """The main process."""
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self) -> System:
        """Starts it, waits until it is ready and returns a client; close its channel."""
        assert self._process is None, "started already"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _UP, str(self.data), *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._variables(),
                start_new_session=True,
            )
        async with asyncio.timeout(START_S):
            while "READY" not in self.log.split():
                if self._process.poll() is not None:
                    raise AssertionError(f"strata up ended:\n{self.log}")
                await asyncio.sleep(0.05)
        runtime = DataFolder(self.data).running()
        assert runtime is not None, self.log
        key = (self.data / "secrets" / "api-key").read_text()
        shape = Shape.SOCKETS if self._split else Shape.IN_PROCESS
        return System(shape, runtime.address, key, "", self.model)

    def tree(self) -> list[psutil.Process]:
        """The main process and everything below it."""
        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]

    async def kill(self) -> list[psutil.Process]:
        """Kills the whole tree with SIGKILL, and returns what was killed."""
        doomed = self.tree()
        for process in doomed:
            _kill(process)
        await self._reap()
        await asyncio.to_thread(psutil.wait_procs, doomed, STOP_S)
        return doomed

    async def stop(self) -> int:
        """Asks it to end, and returns its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return await self._reap()

    async def close(self) -> None:
        """Ends what is left of it."""
        if self._process is not None and self._process.poll() is None:
            await self.kill()

    async def _reap(self) -> int:
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait, STOP_S)
        self._process = None
        return code

    def _variables(self) -> dict[str, str]:
        environment = os.environ
        kept = {name: environment[name] for name in ("PATH", "HOME") if name in environment}
        roots = [str(Path(part).parent) for part in strata.__path__]
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(roots),
            "PYTHONUNBUFFERED": "1",
            "STRATA_LOCAL_DEMO": "off",
            "OPENAI_BASE_URL": self.model.openai_url,
            "OPENAI_API_KEY": "key",
            "STRATA_AGENT_LOOP_DEFAULT_MODEL": "openai/test-model",
            **self._environment,
        }


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie of another process does not count."""
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def using(folder: Path) -> list[psutil.Process]:
    """Processes that were started on something inside a folder."""
    pids = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if any(str(folder) in word for word in words):
            pids.append(process)
    return alive(pids)
