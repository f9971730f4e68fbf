"""``strata up``: everything in one process tree, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from rich.console import Console

from strata.cli.compose.local import API_KEY, Local, LocalOptions, open_local
from strata.cli.compose.progress import progress_lines
from strata.embedded.data_folder import DataFolder
from strata.shared.errors import StrataError
from strata.shared.logs import configure_logging
from strata.shared.loops import loop_factory
from strata.shared.room import Room, Wiring
from strata.shared.server import serve_room

Announce = Callable[[Local, dict[str, int]], None]


def run_up(data: Path | None, *, port: int, split: bool) -> int:
    """Runs Strata in the foreground and returns the exit code.

    Args:
        data: The data folder; None for the default one.
        port: Preferred port of the gateway.
        split: One process per room.
    """
    configure_logging("WARNING", "console")
    console = Console(stderr=False, soft_wrap=True)
    folder = DataFolder(data)
    try:
        folder.open()
    except StrataError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]{error.message}[/]")
        return 1
    try:
        options = LocalOptions(port=port, split=split, report=progress_lines(console))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(folder, options, lambda local, pids: _ready(console, local, pids)))
    except StrataError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]{error.message}[/]")
        return 1
    except asyncio.CancelledError:
        # A signal during the start; what was started has been stopped in order.
        console.print("Stopped before it was ready.")
    finally:
        folder.close()
    return 0


async def _serve(folder: DataFolder, options: LocalOptions, announce: Announce) -> None:
    if options.split:
        await _serve_split(folder, options, announce)
    else:
        await _serve_single(folder, options, announce)


async def _serve_single(folder: DataFolder, options: LocalOptions, announce: Announce) -> None:
    from strata.cli.compose.single import build_rooms  # noqa: PLC0415 - loads every room

    async with AsyncExitStack() as engines:
        with _ended_by_signals():
            local = await open_local(folder, options, engines)

            async def build(_: object, __: Wiring, stack: AsyncExitStack) -> Room:
                return await build_rooms(local, stack)

        await serve_room("strata", build, local.gateway, ready=lambda _: announce(local, {}))


async def _serve_split(folder: DataFolder, options: LocalOptions, announce: Announce) -> None:
    from strata.cli.compose.split import start_rooms  # noqa: PLC0415 - loads every room

    with _ended_by_signals() as signals:
        async with AsyncExitStack() as stack:
            local = await open_local(folder, options, stack)
            rooms = await start_rooms(local, stack, signals.hurry)
            pids = {name: room.supervisor.pid or 0 for name, room in rooms.items()}
            announce(local, pids)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


class _ended_by_signals:  # noqa: N801 - reads as a verb
    """SIGINT and SIGTERM cancel the running task, so that the engines are stopped in order.

    Attributes:
        hurry: Set by the second signal.
    """

    def __init__(self) -> None:
        self.hurry = asyncio.Event()
        self._asked = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    def __enter__(self) -> Self:
        for each in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(each, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(each)

    def _on_signal(self) -> None:
        if self._asked:
            self.hurry.set()
        elif self._task is not None:
            self._asked = True
            self._task.cancel()


def _ready(console: Console, local: Local, rooms: dict[str, int]) -> None:
    address = f"{local.gateway.host}:{local.gateway.port}"
    local.folder.announce(address, {**local.processes, **rooms})
    console.print(f"Strata is ready at [bold]{address}[/], data in {local.folder.path}.")
    console.print(local.model.choice.sentence)
    console.print(
        f"Chat in another terminal: [bold]{_program()} chat assistant --create[/]"
        f"   (API key in {local.folder.secrets / API_KEY})"
    )
    if not sys.stdout.isatty():
        console.print("READY")


def _program() -> str:
    """How this program was called, so that the hint can be copied as it stands."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "strata" else "strata"
