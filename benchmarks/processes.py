"""Child processes of a benchmark, and the resources that a process tree uses."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

import strata
from strata.standalone.settings import environment_of_server

ROOT = Path(__file__).resolve().parents[1]
_FOREIGN = ("STRATA_", "OPENAI_", "ANTHROPIC_")


def environment(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a child, with these settings only."""
    roots = [ROOT, ROOT / "tests", *(Path(part).parent for part in strata.__path__)]
    inherited = {
        name: value
        for name, value in environment_of_server().items()
        if not name.startswith(_FOREIGN)
    }
    path = ":".join(map(str, roots))
    return {**inherited, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **values}


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Makes a folder for the data of a run, and removes it.

    Args:
        prefix: Beginning of its name.
        parent: Where it is made; by default where temporary files are.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # PostgreSQL runs as another user when we are root, and must get to its data.
        folder.chmod(0o711)
        yield folder


class Child:
    """A Python process of ours.

    Args:
        arguments: What follows `python`.
        values: Its settings, as environment variables.
        log: Receives what it prints to standard error.
        python: The interpreter; by default the one of this process.
        accepts_lines: Whether lines can be written to its standard input, which is empty otherwise.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        values: Mapping[str, str],
        log: Path,
        python: str = sys.executable,
        *,
        accepts_lines: bool = False,
    ) -> None:
        self.started = time.perf_counter()
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, *arguments],
                stdin=subprocess.PIPE if accepts_lines else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(values),
                text=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def write(self, line: str) -> None:
        """Writes a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    async def line(self, marker: str, *, seconds: float = 120.0) -> str:
        """Waits for a line that begins with `marker`, and returns the rest of it.

        Raises:
            RuntimeError: It ended without such a line; the message ends with its log.
            TimeoutError: It took too long.
        """
        assert self._process.stdout is not None
        async with asyncio.timeout(seconds):
            while True:
                line = await asyncio.to_thread(self._process.stdout.readline)
                if not line:
                    tail = self._log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the process ended early: {tail}")
                if line.startswith(marker):
                    return line.removeprefix(marker).strip()

    async def stop(self, *, seconds: float = 30.0) -> float:
        """Ends it and its children; returns the seconds it took."""
        started = time.perf_counter()
        tree = tree_of(self.pid)
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        took = time.perf_counter() - started
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return took


def tree_of(pid: int) -> list[psutil.Process]:
    """Returns a process and all its descendants."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that processes use, by kind of process.

    Attributes:
        megabytes: Memory: PSS on Linux, which divides shared pages; RSS elsewhere.
        cpu_ms: Processor time in milliseconds since their start, including ended children.
        count: Number of processes.
    """

    megabytes: dict[str, float]
    cpu_ms: dict[str, float]
    count: dict[str, int]


def usage(pid: int) -> Usage:
    """Returns the resources that a process tree uses."""
    megabytes: dict[str, float] = {}
    cpu: dict[str, float] = {}
    count: dict[str, int] = {}
    for process in tree_of(pid):
        try:
            kind = _kind(process)
            times = process.cpu_times()
            memory = _memory(process)
        except psutil.NoSuchProcess:
            continue
        megabytes[kind] = megabytes.get(kind, 0.0) + memory
        # Including ended children, so that the sum never decreases.
        cpu[kind] = cpu.get(kind, 0.0) + sum(times[:4]) * 1000
        count[kind] = count.get(kind, 0) + 1
    return Usage(megabytes, cpu, count)


async def until_calm(
    pid: int, *, calm_ms: float = 100.0, calm_s: int = 5, patience_s: int = 60
) -> bool:
    """Waits until the processes of a tree have ended their work in the background.

    That is indexing, and the engines' own work after many writes: PostgreSQL vacuums and analyses
    grown tables, and both engines flush data to disk, for up to a minute.

    Args:
        pid: The root of the tree.
        calm_ms: Processor time that a calm tree uses in a second at most, in milliseconds.
        calm_s: Consecutive calm seconds that are waited for.
        patience_s: Seconds after which it returns in any case.

    Returns:
        Whether the tree became calm.
    """
    calm, before = 0, sum(usage(pid).cpu_ms.values())
    for _ in range(patience_s):
        await asyncio.sleep(1)
        now = sum(usage(pid).cpu_ms.values())
        calm = calm + 1 if now - before < calm_ms else 0
        before = now
        if calm == calm_s:
            return True
    return False


class Neighbours:
    """Measures how much processor time other processes used during the benchmark."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._before = _others()

    def share(self) -> float:
        """Returns the share of all processor time that other processes used, from 0 to 1."""
        seconds = (time.monotonic() - self._started) * (psutil.cpu_count() or 1)
        return min(max((_others() - self._before) / seconds, 0.0), 1.0)


def _others() -> float:
    """Returns the seconds of processor time of other processes since the machine started."""
    machine = psutil.cpu_times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    # On Linux, user time includes guest time.
    guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
    ours = 0.0
    for process in tree_of(psutil.Process().pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            # Including ended children.
            ours += sum(process.cpu_times()[:4])
    return float(sum(machine)) - idle - guests - ours


def _kind(process: psutil.Process) -> str:
    command = process.cmdline()
    text = " ".join(command)
    if "strata.standalone.vectors" in text:
        return "vectors"
    if "postgres" in process.name():
        return "postgres"
    for argument in command:
        if argument.startswith("strata.") and argument.endswith(".main"):
            service = argument.split(".")[1]
            return "strata" if service == "cli" else service
    return "strata"


def _memory(process: psutil.Process) -> float:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except FileNotFoundError:
        return float(process.memory_info().rss) / 1e6
    except (PermissionError, ProcessLookupError):
        raise psutil.NoSuchProcess(process.pid) from None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
