"""``strata run``: starts Strata and opens a chat."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

import strata
from strata.cli.commands.up import run_up
from strata.cli.settings import CliSettings
from strata.client.data_folder import Runtime
from strata.standalone.compose.progress import (
    ProgressBar,
    Report,
    parse_progress,
    progress_documents,
)
from strata.standalone.data_folder import DataFolder
from strata.standalone.settings import environment_of_server
from strata.standalone.supervisor import Command, end, spawn, tail

_POLL_SECONDS = 0.1
_STOP_SECONDS = 30.0
_HIDDEN_PREFIXES = ("READY", "Chat in another", "PROGRESS")
_UP = "import sys; from strata.cli.commands.run import up_child; sys.exit(up_child(sys.argv[1:]))"

Chat = Callable[[Path | None], int]


def run_run(data: Path | None, *, port: int, host: str, chat: Chat) -> int:
    """Starts Strata unless it runs, opens a chat, and stops what it started.

    Without a terminal it does the same as `strata up`, which prints how to chat.

    Args:
        data: The data folder; None for the default one.
        port: Preferred port of the gateway.
        host: Address that the gateway listens on.
        chat: Opens the chat and returns its exit code.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _run_up(data, port=port, host=host)
    console = Console(soft_wrap=True)
    folder = DataFolder(data)
    if folder.holder() is not None:
        console.print(f"Strata runs on {folder.path} already; chatting with it.", markup=False)
        return chat(data)
    process = _start(folder, port, host)
    try:
        if asyncio.run(_until_running(folder, process, console)) is None:
            return 1
        return chat(data)
    except KeyboardInterrupt:
        return 130
    finally:
        console.print("Stopping Strata; its data is kept.")
        asyncio.run(end(process, signal.SIGTERM, _STOP_SECONDS))


def up_child(arguments: list[str]) -> int:
    """Runs ``strata up`` in the process that `run_run` starts: port, host and data folder."""
    port, host, data = arguments
    report = progress_documents(sys.stdout.write)
    return _run_up(Path(data), port=int(port), host=host, report=report)


def _run_up(data: Path | None, *, port: int, host: str, report: Report | None = None) -> int:
    settings = CliSettings()
    return run_up(
        data,
        port=port,
        split=False,
        host=host,
        log_level=settings.log_level,
        log_format=settings.log_format,
        report=report,
    )


def _log(folder: DataFolder) -> Path:
    return folder.path / "strata.log"


def _start(folder: DataFolder, port: int, host: str) -> subprocess.Popen[bytes]:
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _log(folder).unlink(missing_ok=True)
    roots = os.pathsep.join(str(Path(part).parent) for part in strata.__path__)
    return spawn(
        Command(
            program=[
                *(sys.executable, "-c", _UP),
                *(str(port), host, str(folder.path)),
            ],
            folder=folder.path,
            log_path=_log(folder),
            environment={
                **environment_of_server(),
                "PYTHONPATH": roots,
                "PYTHONUNBUFFERED": "1",
                "COLUMNS": "200",
            },
        )
    )


async def _until_running(
    folder: DataFolder, process: subprocess.Popen[bytes], console: Console
) -> Runtime | None:
    """Shows the output of the process until it serves; returns None if it ended before that."""
    printed_lines = 0
    with ProgressBar(console) as bar:
        while True:
            runtime = folder.running()
            ended = process.poll() is not None
            lines = tail(_log(folder), 1 << 20).splitlines()
            for line in lines[printed_lines:]:
                if (progress := parse_progress(line)) is not None:
                    bar.report(progress)
                elif not line.startswith(_HIDDEN_PREFIXES):
                    console.print(line, highlight=False, markup=False)
            printed_lines = len(lines)
            if runtime is not None:
                return runtime
            if ended:
                return None
            await asyncio.sleep(_POLL_SECONDS)
