"""The commands ``strata memory log``, ``diff``, ``blame`` and ``revert``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import GatewayClient, all_of, new_request_id
from strata.cli.diffs import whole_diff
from strata.cli.failures import UsageError
from strata.cli.memory.blocks import known_block_id
from strata.cli.memory.history import Names, VersionChange, newest_steps
from strata.cli.memory.views import print_changes, print_log, print_steps
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import console, note, print_json, safe, when
from strata.cli.times import timestamp_of

LabelArgument = Annotated[str, typer.Argument(metavar="LABEL", help="Label of the block.")]
OptionalLabelArgument = Annotated[
    str, typer.Argument(metavar="LABEL", help="Only this block.", show_default=False)
]


@online
def log(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: OptionalLabelArgument = "",
    patch: Annotated[
        bool, typer.Option("--patch", "-p", help="Show what each version changed.")
    ] = False,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Show who changed the memory blocks of an agent, when and why, newest first."""

    async def read(client: GatewayClient) -> tuple[list[VersionChange], Names]:
        agent_id = await client.agent_id(agent)
        steps = await newest_steps(client, agent_id, label, limit)
        names = Names(client)
        if not as_json:
            await names.learn(step.version.origin.agent_id for step in steps)
        return steps, names

    steps, names = connection.run(read)
    if as_json:
        versions = [step.version for step in steps]
        print_json(pb.ListBlockVersionsResponse(versions=versions))
    elif patch:
        print_steps(steps, names)
    else:
        print_log(steps, names)


@online
def diff(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: LabelArgument,
    old: Annotated[
        int,
        typer.Argument(
            metavar="FROM", min=0, help="Revision; default: the one before.", show_default=False
        ),
    ] = 0,
    new: Annotated[
        int,
        typer.Argument(
            metavar="TO", min=0, help="Revision; default: the newest.", show_default=False
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show the changes of a block between two revisions, or by its last edit."""

    async def read(client: GatewayClient) -> pb.DiffBlockResponse:
        block_id = await known_block_id(client, await client.agent_id(agent), label)
        request = pb.DiffBlockRequest(block_id=block_id, from_revision=old, to_revision=new)
        return await client.blocks.DiffBlock(request)

    response = connection.run(read)
    if as_json:
        print_json(response)
        return
    if not response.diff:
        note("The text did not change.")
        return
    if not sys.stdout.isatty():
        sys.stdout.write(response.diff.rstrip("\n") + "\n")
        return
    for line in whole_diff(response.diff.rstrip("\n")):
        console().print(line, soft_wrap=True)


@online
def blame(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: LabelArgument,
    revision: Annotated[
        int | None,
        typer.Option("--revision", min=1, help="The text at this revision.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show who wrote each line of a block, when and how."""

    async def read(client: GatewayClient) -> tuple[pb.BlameBlockResponse, Names]:
        block_id = await known_block_id(client, await client.agent_id(agent), label)
        request = pb.BlameBlockRequest(block_id=block_id, revision=revision or 0)
        response = await all_of(client.blocks.BlameBlock, request, "lines")
        names = Names(client)
        if not as_json:
            await names.learn(line.origin.agent_id for line in response.lines)
        return response, names

    response, names = connection.run(read)
    if as_json:
        print_json(response)
    else:
        _print_blame(response.lines, names)


def _print_blame(lines: Sequence[pb.BlameLine], names: Names) -> None:
    screen = console()
    if not lines:
        note("The block is empty.")
    origins = [
        (
            str(line.revision),
            names.who(line.origin, line.principal),
            when(line.create_time),
            line.operation,
        )
        for line in lines
    ]
    widths = (
        [max(len(safe(origin[at])) for origin in origins) for at in range(4)] if origins else []
    )
    last = str(lines[-1].line) if lines else ""
    for line, origin in zip(lines, origins, strict=True):
        cells = [safe(cell).ljust(width) for cell, width in zip(origin, widths, strict=True)]
        line_text = Text("  ".join(cells), style="dim")
        line_text.append(f"  {str(line.line).rjust(len(last))}: ", style="cyan")
        line_text.append(safe(line.text), style="not dim")
        screen.print(line_text, soft_wrap=True)


@online
def revert(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: OptionalLabelArgument = "",
    revision: Annotated[
        int | None,
        typer.Option(
            "--revision", min=1, help="Undo the edit that made this revision.", show_default=False
        ),
    ] = None,
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, help="Restore the text of this revision.", show_default=False),
    ] = None,
    run: Annotated[
        str,
        typer.Option("--run", metavar="RUN", help="Undo all edits of a run.", show_default=False),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="TIME",
            help='Undo all edits since then: "2026-07-30 14:00", "14:00", or "2h" ago.',
            show_default=False,
        ),
    ] = "",
    reason: Annotated[
        str,
        typer.Option("--reason", help="Reason; stored with the new version.", show_default=False),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, without changing it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Undo edits by writing a new version; later edits of other text stay.

    With a label: edits of that block, by any editor.

    Without one: the edits that this agent made, in all its blocks or in none.
    """
    if sum(map(bool, (revision, to, run, since))) != 1:
        raise UsageError("Give one of --revision, --to, --run and --since.")
    if (revision or to) and not label:
        raise UsageError("--revision and --to need the label of a block.")
    time = timestamp_of(since)

    async def undo(client: GatewayClient) -> pb.RevertBlockResponse:
        agent_id = await client.agent_id(agent)
        block_id = await known_block_id(client, agent_id, label) if label else ""
        request = pb.RevertBlockRequest(
            request_id=new_request_id(),
            block_id=block_id,
            agent_id="" if label else agent_id,
            reason=reason,
            validate_only=dry_run,
        )
        if revision:
            request.revision = revision
        elif to:
            request.to_revision = to
        elif run:
            request.run_id = run
        elif time is not None:
            request.since_time.CopyFrom(time)
        return await client.blocks.RevertBlock(request)

    response = connection.run(undo)
    if as_json:
        print_json(response)
    else:
        print_changes(response.changes, dry_run=dry_run)
