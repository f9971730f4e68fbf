"""``strata memory``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.chat.prompt import is_interactive
from strata.cli.client import Client, first_of, new_request_id
from strata.cli.diffs import diff_text, unified_diff
from strata.cli.editor import EditorSettings
from strata.cli.editor import edit as edit_text
from strata.cli.failures import UsageError
from strata.cli.options import AgentArgument, Connection, JsonOption, online
from strata.cli.output import console, note, print_json, print_text, safe, when

app = typer.Typer(
    help="Show and edit the memory blocks of an agent.",
    no_args_is_help=True,
    add_completion=False,
)

_ALL = 500
_DIFF_LINES = 200

LabelArgument = Annotated[str, typer.Argument(metavar="LABEL", help="Label of the block.")]


@app.command("show")
@online
def show_memory(
    connection: Connection,
    agent: AgentArgument,
    label: Annotated[
        str, typer.Argument(metavar="[LABEL]", help="Only this block.", show_default=False)
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show the memory blocks of an agent as the model sees them, or the text of one."""

    async def read_one(client: Client) -> pb.Block:
        return await _block(client, await client.agent_id(agent), label)

    async def read_all(client: Client) -> pb.ListBlocksResponse:
        request = pb.ListBlocksRequest(agent_id=await client.agent_id(agent))
        return await first_of(client.blocks.ListBlocks, request, "blocks", _ALL)

    if label:
        block = connection.run(read_one)
        if as_json:
            print_json(block)
        else:
            print_text(block.value)
        return
    found = connection.run(read_all)
    if as_json:
        print_json(found)
    else:
        _print_blocks(found.blocks)


@app.command("edit")
@online
def edit_memory(
    connection: Connection,
    agent: AgentArgument,
    label: LabelArgument,
    value: Annotated[str | None, typer.Option("--value", help="The new text.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", help='File with the new text; "-" reads the input.')
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Edit a memory block, in $EDITOR if no text is given.

    If the agent changed the block meanwhile, nothing is written.
    """
    given = _given_text(value, file)

    async def edit(client: Client) -> tuple[pb.Block, pb.Block]:
        before = await _block(client, await client.agent_id(agent), label)
        text = edit_text(before.value, EditorSettings()) if given is None else given
        if text == before.value:
            return before, before
        request = pb.UpdateBlockRequest(
            request_id=new_request_id(),
            block_id=before.id,
            value=text,
            expected_revision=before.revision,
            reason="edited on the command line",
        )
        try:
            return before, (await client.blocks.UpdateBlock(request)).block
        except Exception:
            if given is None:
                _keep(text)
            raise

    before, after = connection.run(edit)
    _print_edit(before, after, as_json=as_json)


async def _block(client: Client, agent_id: str, label: str) -> pb.Block:

    request = pb.GetBlockRequest(agent_id=agent_id, label=label)
    return (await client.blocks.GetBlock(request)).block


def _given_text(value: str | None, file: str | None) -> str | None:

    if value is not None and file is not None:
        raise UsageError("Give --value or --file, not both.")
    if file == "-":
        return sys.stdin.read()
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    if value is None and not is_interactive():
        raise UsageError("There is no terminal to edit on. Give --value or --file.")
    return value


def _keep(text: str) -> None:

    with tempfile.NamedTemporaryFile(
        "w", prefix="strata-memory-", suffix=".txt", delete=False, encoding="utf-8"
    ) as kept:
        kept.write(text)
    note(f"Nothing was written. Your text is in {kept.name}")


def _print_edit(before: pb.Block, after: pb.Block, *, as_json: bool) -> None:

    if as_json:
        print_json(after)
        return
    screen = console()
    if after.revision == before.revision:
        screen.print("Nothing changed.")
        return
    for line in diff_text(unified_diff(before.value, after.value), limit=_DIFF_LINES):
        screen.print(line, soft_wrap=True)
    screen.print(safe(f"{after.label} is now at revision {after.revision}."), soft_wrap=True)


def _print_blocks(blocks: Sequence[pb.Block]) -> None:

    screen = console()
    if not blocks:
        screen.print(Text("The agent has no memory blocks.", style="dim"))
    for number, block in enumerate(blocks):
        if number:
            screen.print()
        heading = Text(safe(block.label), style="bold cyan")
        flags = ", read-only" if block.read_only else ""
        shared = f", shared by {len(block.agent_ids)} agents" if len(block.agent_ids) > 1 else ""
        heading.append(
            f"  {len(block.value):,} of {block.limit:,} characters, revision {block.revision}"
            f"{flags}{shared}, changed {when(block.update_time)}",
            style="dim",
        )
        screen.print(heading, soft_wrap=True)
        if block.description:
            screen.print(Text(safe(block.description), style="dim italic"), soft_wrap=True)
        screen.print(
            Text(safe(block.value)) if block.value else Text("(empty)", style="dim"), soft_wrap=True
        )
