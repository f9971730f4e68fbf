"""``strata memory edit``: edits a memory block."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.chat.prompt import is_interactive
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.commands.memory_history import LabelArgument
from strata.cli.diffs import diff_text, unified_diff
from strata.cli.editor import EditorSettings
from strata.cli.editor import edit as edit_text
from strata.cli.failures import UsageError
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, online
from strata.cli.output import console, error_console, note, print_json, safe
from strata.protocol.errors import AbortedError
from strata.shared.agent_mcp.blocks import attached_block

_DIFF_LINES = 200


@online
def edit(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: LabelArgument,
    value: Annotated[str | None, typer.Option("--value", help="The new text.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", help='File with the new text; "-" reads the input.')
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason; stored with the new version.")
    ] = "edited on the command line",
    as_json: JsonOption = False,
) -> None:
    """Edit a memory block, in $EDITOR if no text is given.

    Changes by the agent meanwhile are merged.
    If the changes conflict, nothing is written, and your text is saved in a file.
    """
    new_text = text_of_options(value, file)
    if new_text is None and not is_interactive():
        raise UsageError("There is no terminal to edit on. Give --value or --file.")

    async def edit(client: GatewayClient) -> tuple[pb.Block, pb.UpdateBlockResponse]:
        before = await attached_block(client, await client.agent_id(agent), label)
        text = edit_text(before.value, EditorSettings()) if new_text is None else new_text
        if text == before.value:
            return before, pb.UpdateBlockResponse(block=before)
        request = pb.UpdateBlockRequest(
            request_id=new_request_id(),
            block_id=before.id,
            value=text,
            base_revision=before.revision,
            reason=reason,
        )
        try:
            return before, await client.blocks.UpdateBlock(request)
        except BaseException as error:
            if isinstance(error, AbortedError):
                await _show_both(client, before, text)
            if file in (None, "-"):
                _save_unwritten_text(text)
            raise

    before, response = connection.run(edit)
    _print_edit(before, response, as_json=as_json)


@online
def trust(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: LabelArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="Reason; stored with the new version.")
    ] = "trusted on the command line",
    as_json: JsonOption = False,
) -> None:
    """Remove the mark of untrusted content from a memory block.

    Read the present text first, with `show`.
    """

    async def clear_mark(client: GatewayClient) -> tuple[pb.Block, pb.Block]:
        before = await attached_block(client, await client.agent_id(agent), label)
        request = pb.UpdateBlockRequest(
            request_id=new_request_id(),
            block_id=before.id,
            clear_taint=True,
            # The person has not read later versions.
            expected_revision=before.revision,
            reason=reason,
        )
        return before, (await client.blocks.UpdateBlock(request)).block

    before, after = connection.run(clear_mark)
    if as_json:
        print_json(after)
    elif before.taint:
        console().print(f"{safe(after.label)} is no longer marked.", soft_wrap=True)
    else:
        console().print("It was not marked.")


async def _show_both(client: GatewayClient, before: pb.Block, text: str) -> None:
    request = pb.GetBlockRequest(block_id=before.id)
    theirs = (await client.blocks.GetBlock(request)).block
    sys.stdout.flush()
    screen = error_console()
    for title, changed in (("Changed by others", theirs.value), ("Changed by you", text)):
        screen.print(f"{title}:", style="italic")
        for line in diff_text(unified_diff(before.value, changed), limit=_DIFF_LINES):
            screen.print(line, soft_wrap=True)


def text_of_options(value: str | None, file: str | None) -> str | None:
    """Returns the text of ``--value`` or ``--file``; None if neither is set.

    Raises:
        UsageError: Both are set, or the file cannot be read.
    """
    if value is not None and file is not None:
        raise UsageError("Give --value or --file, not both.")
    if file == "-":
        return sys.stdin.read()
    if file is not None:
        try:
            return Path(file).read_bytes().decode()
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} is not UTF-8 text.") from error
    return value


def _save_unwritten_text(text: str) -> None:

    with tempfile.NamedTemporaryFile(
        "w", prefix="strata-memory-", suffix=".txt", delete=False, encoding="utf-8", newline=""
    ) as kept:
        kept.write(text)
    note(f"Nothing was written. Your text is in {kept.name}")


def _print_edit(before: pb.Block, response: pb.UpdateBlockResponse, *, as_json: bool) -> None:

    after = response.block
    if as_json:
        print_json(after)
        return
    screen = console()
    if after.revision == before.revision:
        screen.print("Nothing changed.")
        return
    for line in diff_text(unified_diff(before.value, after.value), limit=_DIFF_LINES):
        screen.print(line, soft_wrap=True)
    now = f"{safe(after.label)} is now at revision {after.revision}"
    merged = ", merged with changes by others" if response.merged else ""
    screen.print(f"{now}{merged}.", soft_wrap=True)
