"""``strata memory pull`` and ``push``: memory blocks as files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.client import GatewayClient
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.memory.folder import MemoryFolder
from strata.cli.memory.pull import ConflictChoice, Pull
from strata.cli.memory.push import Push, PushOptions
from strata.cli.memory.sync_results import FAILURES, FileOutcome, print_outcomes
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, online

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder with a Markdown file for each block.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show results and diffs without changing anything.")
]


@online
def pull(
    connection: GatewayOptions,
    agent: AgentArgument,
    folder: FolderArgument,
    conflicts: Annotated[
        ConflictChoice,
        typer.Option(
            "--conflicts",
            help="What to do with a file that conflicts with its block: leave it and report it, "
            "keep the file's text, or replace it with the block's.",
        ),
    ] = ConflictChoice.REPORT,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Remove unchanged files of blocks the agent no longer has."),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the memory blocks of an agent to a folder, one Markdown file each.

    A file that was changed since the last pull is merged with its block, or not changed.
    """

    async def work(client: GatewayClient) -> list[FileOutcome]:
        agent_id = await client.agent_id(agent)
        work = Pull(
            client,
            agent_id,
            MemoryFolder(folder),
            on_conflict=conflicts,
            delete=delete,
            dry_run=dry_run,
        )
        return await work.run()

    _run_sync(connection, folder, work, as_json=as_json, dry_run=dry_run)


@online
def push(
    connection: GatewayOptions,
    agent: AgentArgument,
    folder: FolderArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Detach the blocks whose files were removed; asks.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Change read-only blocks too.")] = False,
    importing: Annotated[
        bool,
        typer.Option(
            "--import", help="Import files that were pulled from another agent or server."
        ),
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason; stored with the new versions.")
    ] = "pushed from files",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the files of a folder to the memory blocks of an agent.

    A new file becomes a new block. Changes by others since the pull are merged.

    A file that conflicts with its block is not written, and the exit code is 1.
    """

    def consent(labels: list[str]) -> None:
        listed_labels = ", ".join(labels)
        confirm(
            f"Detach {listed_labels} from {agent}?",
            yes=yes,
            otherwise=f"This detaches {listed_labels}.",
        )

    options = PushOptions(consent, dry_run, force, delete, importing, reason)

    async def work(client: GatewayClient) -> list[FileOutcome]:
        agent_id = await client.agent_id(agent)
        return await Push(client, agent_id, MemoryFolder(folder), options).run()

    _run_sync(connection, folder, work, as_json=as_json, dry_run=dry_run)


def _run_sync(
    connection: GatewayOptions,
    folder: Path,
    work: Callable[[GatewayClient], Awaitable[list[FileOutcome]]],
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    try:
        outcomes = connection.run(work)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}.") from error
    print_outcomes(outcomes, as_json=as_json, dry_run=dry_run)
    if any(outcome.result in FAILURES for outcome in outcomes):
        raise typer.Exit(EXIT_FAILURE)
