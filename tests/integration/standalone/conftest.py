"""Runs engines under another process, so that tests can kill that process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from child_processes import SOURCE_PATH

RUN_ENGINES = """
import asyncio, json, sys
from pathlib import Path
from strata.standalone.postgres import EmbeddedPostgres
from strata.standalone.vectors import EmbeddedVectors

async def main(folder, watchdog):
    postgres = EmbeddedPostgres(folder / "postgres", watchdog=watchdog or None)
    vectors = EmbeddedVectors(folder / "vectors", watchdog=watchdog or None)
    await asyncio.gather(postgres.start(), vectors.start())
    print(json.dumps({
        "postgres": postgres.pid, "url": postgres.url(), "vectors": vectors.pid,
        "port": vectors.port, "key": vectors.api_key,
    }), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "watchdog"))
"""


class Engines:
    """Another process that supervises both engines."""

    def __init__(self, folder: Path, *, watchdog: bool) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN_ENGINES, str(folder), "watchdog" if watchdog else ""],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": SOURCE_PATH},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the engines did not start"
        self.details: dict[str, Any] = json.loads(line)
        self.tree = psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        """Kills only the supervisor, with SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Ends the supervisor, which must end its engines."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def survivors(self, seconds: float = 20.0) -> list[psutil.Process]:
        """Returns the processes of the tree that still run after at most `seconds`."""
        _gone, alive = psutil.wait_procs(self.tree, timeout=seconds)
        return [process for process in alive if process.is_running()]


@pytest.fixture
def run_engines(open_folder: Path) -> Iterator[Callable[..., Engines]]:
    """Starts engines in `open_folder` under a process of their own."""
    started: list[Engines] = []

    def run(*, watchdog: bool = False) -> Engines:
        started.append(Engines(open_folder, watchdog=watchdog))
        return started[-1]

    yield run
    for engines in started:
        engines.close()
        assert not engines.survivors()
