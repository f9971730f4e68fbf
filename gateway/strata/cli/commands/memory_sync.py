"""``strata memory pull`` and ``push``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.asking import YesOption, ask
from strata.cli.client import Client
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.memory.folder import MemoryFolder
from strata.cli.memory.outcomes import FAILURES, Outcome, print_outcomes
from strata.cli.memory.pulling import OnConflict, Pull
from strata.cli.memory.pushing import Push, PushOptions
from strata.cli.options import AgentArgument, Connection, JsonOption, online

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder with a Markdown file for each block.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only tell, and show diffs.")]


@online
def pull(
    connection: Connection,
    agent: AgentArgument,
    folder: FolderArgument,
    conflicts: Annotated[
        OnConflict,
        typer.Option(
            "--conflicts",
            help="What becomes of a file that was changed in the same place as its block: left "
            "alone and reported, kept over theirs, or replaced by theirs.",
        ),
    ] = OnConflict.REPORT,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Remove unchanged files of blocks the agent has no more."),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the memory blocks of an agent to a folder, one Markdown file each.

    A file that was changed since the last pull is merged with its block, or left alone.
    """

    async def work(client: Client) -> list[Outcome]:
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

    _run(connection, folder, work, as_json=as_json, dry_run=dry_run)


@online
def push(
    connection: Connection,
    agent: AgentArgument,
    folder: FolderArgument,
    delete: Annotated[
        bool, typer.Option("--delete", help="Detach the blocks whose files were removed; asks.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Change read-only blocks too.")] = False,
    importing: Annotated[
        bool,
        typer.Option(
            "--import", help="Take over files that were pulled from another agent or Strata."
        ),
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Kept with the new versions.")
    ] = "pushed from files",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the files of a folder to the memory blocks of an agent.

    A new file becomes a new block. What others changed since the pull is merged.

    Where both changed the same, nothing is written, and the exit code is 1.
    """

    def consent(labels: list[str]) -> None:
        those = ", ".join(labels)
        ask(f"Detach {those} from {agent}?", yes=yes, otherwise=f"This detaches {those}.")

    options = PushOptions(consent, dry_run, force, delete, importing, reason)

    async def work(client: Client) -> list[Outcome]:
        agent_id = await client.agent_id(agent)
        return await Push(client, agent_id, MemoryFolder(folder), options).run()

    _run(connection, folder, work, as_json=as_json, dry_run=dry_run)


def _run(
    connection: Connection,
    folder: Path,
    work: Callable[[Client], Awaitable[list[Outcome]]],
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
