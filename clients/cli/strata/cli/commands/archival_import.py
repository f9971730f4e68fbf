"""``strata archival import``: stores the passages of a JSON Lines file, resumably."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.archival.passage_import import Import, ImportTarget, PassageFile
from strata.cli.archival.references import archive_id
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.failures import UsageError
from strata.cli.options import GatewayOptions, JsonOption, online
from strata.cli.output import error_console, print_json


class _ImportBar:
    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        # Escape markup in the file name.
        self._task = progress.add_task(name.replace("[", r"\["), total=None)

    def show(self, received: int, total: int) -> None:
        self._progress.update(self._task, completed=received, total=total)


@online
def import_passages(
    connection: GatewayOptions,
    path: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl", help="File with one JSON object per line.")
    ],
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            autocompletion=complete_agent,
            help="Store into this agent's own archive, or",
            metavar="AGENT",
        ),
    ] = "",
    archive: Annotated[
        str, typer.Option("--archive", help="into this archive, by name or id.", metavar="ARCHIVE")
    ] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Start over, even if the file was imported before.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Store the passages of a JSON Lines file; an interrupted import resumes.

    A line has "text" and optionally "tags", "metadata", "create_time" (RFC 3339), "origin",
    "embedding" and "embedding_model". Equal texts are stored once.
    """
    if bool(agent) == bool(archive):
        raise UsageError("Give --agent or --archive.")
    source = PassageFile.of(path)
    screen = error_console()
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=screen,
    )

    async def work(client: GatewayClient) -> pb.UploadPassagesResponse:
        target = ImportTarget(
            await client.agent_id(agent) if agent else "",
            await archive_id(client, archive) if archive else "",
        )
        request_id = new_request_id() if again else source.request_id(target)
        return await Import(client, source, target, request_id, _ImportBar(bars, path.name)).run()

    with bars if screen.is_terminal else nullcontext():
        done = connection.run(work)
    if as_json:
        print_json(done)
        return
    typer.echo(
        f"Stored {done.inserted_count:,} of {done.received_count:,};"
        f" {done.duplicate_count:,} were there already."
    )
    if done.near_duplicate_count:
        typer.echo(f"{done.near_duplicate_count:,} are nearly the same as an earlier one.")
