"""``strata up``: runs everything in one process tree until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.markup import escape

from strata.cli.console_link import show_console
from strata.cli.failures import UsageError, exit_code_of, show_error
from strata.client.target import API_KEY_FILE, data_option
from strata.protocol.errors import StrataError
from strata.shared.event_loop import loop_factory
from strata.shared.heap_trim import use_one_arena
from strata.shared.logs import LogFormat, LogLevel, configure_logging
from strata.shared.open_files import raise_open_file_limit
from strata.shared.server import serve_service
from strata.shared.service import ListenError, Service, Wiring
from strata.standalone.compose.local import (
    DEFAULT_LOG_FORMAT,
    DEFAULT_LOG_LEVEL,
    HOST,
    Local,
    LocalOptions,
    open_local,
)
from strata.standalone.compose.progress import ProgressBar, Report, progress_lines
from strata.standalone.compose.single import build_services
from strata.standalone.compose.split import start_services
from strata.standalone.data_folder import DataFolder
from strata.standalone.ports import pick_port

Announce = Callable[[Local, dict[str, int]], None]


def run_up(
    data: Path | None,
    *,
    port: int,
    split: bool,
    host: str = HOST,
    log_level: LogLevel = DEFAULT_LOG_LEVEL,
    log_format: LogFormat = DEFAULT_LOG_FORMAT,
    report: Report | None = None,
) -> int:
    """Runs Strata in the foreground and returns the exit code.

    Args:
        data: The data folder; None for the default one.
        port: Preferred port of the gateway.
        host: Address that the gateway listens on.
        split: One process per service.
        log_level: Lowest level that is logged.
        log_format: Form of the logs.
        report: Called with the progress of the demo model; None shows it here.
    """
    use_one_arena()
    raise_open_file_limit()
    configure_logging(log_level, log_format)
    console = Console(stderr=False, soft_wrap=True)
    folder = DataFolder(data)
    try:
        folder.open()
    except StrataError as error:
        show_error(error)
        return exit_code_of(error)
    try:
        with ProgressBar(console) as bar, asyncio.Runner(loop_factory=loop_factory()) as runner:
            report_progress = bar.report if console.is_terminal else progress_lines(console)
            options = LocalOptions(
                port, host, split, log_level, log_format, report=report or report_progress
            )

            def announce(local: Local, pids: dict[str, int]) -> None:
                bar.stop()
                _announce_ready(console, local, pids)

            try:
                runner.run(_serve(folder, options, announce))
            except ListenError:
                if not _was_taken(port):
                    raise
                # Another Strata that started at the same moment has it now: take the next port.
                runner.run(_serve(folder, options, announce))
    except ListenError as error:
        wrong = UsageError(f"Strata {error}. Choose another address or port, or 0 for a free port.")
        show_error(wrong)
        return exit_code_of(wrong)
    except StrataError as error:
        show_error(error)
        return exit_code_of(error)
    except asyncio.CancelledError:
        # A signal during the start; what was started has been stopped in order.
        console.print("Stopped before it was ready.")
    finally:
        folder.close()
    return 0


def _was_taken(port: int) -> bool:
    """Returns whether another process listens on the preferred port."""
    return port > 0 and pick_port(port) != port


async def _serve(folder: DataFolder, options: LocalOptions, announce: Announce) -> None:
    if options.split:
        await _serve_split(folder, options, announce)
    else:
        await _serve_single(folder, options, announce)


async def _serve_single(folder: DataFolder, options: LocalOptions, announce: Announce) -> None:
    async with AsyncExitStack() as engines:
        with _CancelOnSignals():
            local = await open_local(folder, options, engines)

            async def build(_: object, wiring: Wiring, stack: AsyncExitStack) -> Service:
                return await build_services(local, wiring.telemetry, stack)

            def ready(_: object) -> None:
                local.folder.announce_metrics(local.metrics_host, {"strata": local.metrics_port})
                announce(local, {})

        await serve_service("strata", build, local.gateway, ready=ready)


async def _serve_split(folder: DataFolder, options: LocalOptions, announce: Announce) -> None:
    with _CancelOnSignals() as signals:
        async with AsyncExitStack() as stack:
            local = await open_local(folder, options, stack)
            services = await start_services(local, stack, signals.stop_now)
            pids = {name: service.supervisor.pid or 0 for name, service in services.items()}
            announce(local, pids)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


class _CancelOnSignals:
    """Cancels the current task on SIGINT and SIGTERM, so that the engines stop in order.

    Attributes:
        stop_now: Set by the second signal: services that are stopping get no more time.
    """

    def __init__(self) -> None:
        self.stop_now = asyncio.Event()
        self._is_cancelled = False
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._is_cancelled:
            self.stop_now.set()
        elif self._task is not None:
            self._is_cancelled = True
            self._task.cancel()


def _announce_ready(console: Console, local: Local, services: dict[str, int]) -> None:
    """Records the addresses and pids in the data folder, and prints how to connect."""
    gateway = local.gateway
    host = f"[{gateway.host}]" if ":" in gateway.host.strip("[]") else gateway.host
    address = f"{'https://' if gateway.tls else ''}{host}:{gateway.port}"
    pids = {**local.processes, **services}
    local.folder.announce(local.address, pids, http_url=local.http_url)
    console.print(
        f"Strata is ready at [bold]{escape(address)}[/], data in {escape(str(local.folder.path))}."
    )
    if gateway.tls is None and not _is_loopback(gateway.host):
        console.print(
            "[yellow]Warning:[/] other machines can reach this address, and API keys and messages"
            " cross the network unencrypted. Set STRATA_GATEWAY_TLS_CERTIFICATE_FILE and"
            " STRATA_GATEWAY_TLS_KEY_FILE, or put a proxy with TLS in front."
        )
    console.print(
        f"HTTP: [bold]{escape(local.http_url)}[/]   (OpenAI clients: base URL"
        f" {escape(local.http_url)}/v1, the API key, and an agent as the model)"
    )
    if gateway.console and gateway.http_port is not None:
        show_console(console, local.folder, local.http_url)
    console.print(f"Metrics for Prometheus: targets in {escape(str(local.folder.metrics_targets))}")
    console.print(local.model.choice.sentence, markup=False)
    console.print(
        f"Chat in another terminal: [bold]{escape(_program())} chat assistant --create"
        f"{escape(data_option(local.folder))}[/]"
        f"   (API key in {escape(str(local.folder.secrets / API_KEY_FILE))})"
    )
    if not sys.stdout.isatty():
        console.print("READY")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _program() -> str:
    """Returns how this program was called, so that users can copy the hint unchanged."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "strata" else "strata"
