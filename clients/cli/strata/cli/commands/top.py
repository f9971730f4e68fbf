"""``strata top``: a live view of runs, services, models, tools, indexes and the database."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from strata.cli.commands.server import DataOption
from strata.cli.failures import EXIT_UNREACHABLE, UsageError
from strata.cli.output import console, safe
from strata.cli.top.samples import Reading, read_targets
from strata.cli.top.tables import LiveTable, live_tables
from strata.client.data_folder import DataFolderReader
from strata.client.settings import ClientSettings
from strata.standalone.data_folder import METRICS_TARGETS

app = typer.Typer(add_completion=False)


@app.command()
def top(
    data: DataOption = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics",
            metavar="URL",
            help="A metrics port, http://host:7690; may be repeated. Default: the ports in the data"
            " folder.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, help="Seconds between two views.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one view and end.")] = False,
) -> None:
    """Show what a running Strata does: rates, waiting times and latencies, several times a minute.

    It reads the metrics ports. Rates and percentiles cover the last interval. Without a
    terminal it prints one view. The exit code is 3 if no port answers.
    """
    targets = [url.rstrip("/") for url in metrics or ()] or _targets(data)
    if once or not console().is_terminal:
        readings = asyncio.run(_print_once(targets, interval))
        if all(reading.problem for reading in readings):
            raise typer.Exit(EXIT_UNREACHABLE)
        return
    try:
        screen = Console(markup=False, highlight=False, emoji=False)
        asyncio.run(show_live(targets, interval, screen))
    except KeyboardInterrupt:
        return


def _targets(data: Path | None) -> list[str]:
    """Returns the metrics ports that the data folder lists."""
    folder = DataFolderReader(data or ClientSettings.from_environment().data)
    try:
        listed = json.loads((folder.path / METRICS_TARGETS).read_text("utf-8"))
        return [f"http://{target}" for entry in listed for target in entry["targets"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder.path} lists no metrics ports. Start Strata with strata up, or name the ports"
            " with --metrics."
        ) from error


async def _print_once(targets: Sequence[str], interval: float) -> list[Reading]:
    before = await read_targets(targets)
    await asyncio.sleep(interval)
    after = await read_targets(targets)
    screen = console()
    for table in live_tables(before, after):
        if screen.is_terminal:
            screen.print(_drawn(table))
            continue
        sys.stdout.write(f"{table.title}\n")
        for row in (table.columns, *table.rows):
            sys.stdout.write("\t".join(safe(cell) for cell in row) + "\n")
    return after


async def show_live(targets: Sequence[str], interval: float, screen: Console) -> None:
    """Shows the view until it is cancelled.

    Args:
        targets: Base URLs of the metrics ports.
        interval: Seconds between two views.
        screen: A terminal.
    """
    before = await read_targets(targets)
    with Live(
        Text("Reading the metrics …"), console=screen, screen=True, auto_refresh=False
    ) as live:
        while True:
            await asyncio.sleep(interval)
            after = await read_targets(targets)
            clock = Text(f"{time.strftime('%H:%M:%S')}  every {interval:g} s  Ctrl-C ends", "dim")
            drawn = [_drawn(table) for table in live_tables(before, after)]
            live.update(Group(clock, *drawn), refresh=True)
            before = after


def _drawn(table: LiveTable) -> Table:
    drawn = Table(
        title=Text(table.title, "bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
    )
    for index, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if index == 0 else "right")
    for row in table.rows:
        drawn.add_row(*(Text(safe(cell)) for cell in row))
    return drawn
