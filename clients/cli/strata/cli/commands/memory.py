"""``strata memory``: shows and checks the memory blocks of an agent."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.commands import memory_blocks, memory_edit, memory_history, memory_sync
from strata.cli.commands.memory_history import LabelArgument, OptionalLabelArgument
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.memory.blocks import known_block_id, newest_version
from strata.cli.memory.views import print_blocks
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, online
from strata.cli.output import note, print_json, print_table, print_text, safe
from strata.cli.times import AsOfOption, timestamp_of
from strata.protocol.errors import AlreadyExistsError, NotFoundError, Reason
from strata.shared.agent_mcp.blocks import attached_block
from strata.shared.convert.enums import enum_name
from strata.shared.one_line import clipped

app = typer.Typer(
    help="Show and edit the memory blocks, which an agent always sees; explain and undo changes.",
    no_args_is_help=True,
    add_completion=False,
)

_TEXT_CHARS = 80

ReasonOption = Annotated[
    str, typer.Option("--reason", help="Reason; stored in the history.", show_default=False)
]


@app.command("show")
@online
def show_memory(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: OptionalLabelArgument = "",
    as_of: AsOfOption = "",
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Print exactly the text that the model gets.")
    ] = False,
    numbered: Annotated[
        bool, typer.Option("--numbered", help="The same, with a number before each line.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the memory blocks of an agent, now or at an earlier time, or the text of one."""
    if label and (prompt or numbered):
        raise UsageError("--prompt and --numbered show all blocks; leave out the label.")
    time = timestamp_of(as_of)

    async def read_one(client: GatewayClient) -> pb.Block:
        return await attached_block(client, await client.agent_id(agent), label, time)

    async def read_all(client: GatewayClient) -> pb.RenderMemoryResponse:
        request = pb.RenderMemoryRequest(
            agent_id=await client.agent_id(agent), as_of_time=time, line_numbers=numbered
        )
        return await client.blocks.RenderMemory(request)

    if label:
        block = connection.run(read_one)
        if as_json:
            print_json(block)
        else:
            print_text(block.value)
        return
    rendered = connection.run(read_all)
    if as_json:
        print_json(rendered)
    elif prompt or numbered:
        print_text(rendered.text)
    else:
        print_blocks(rendered.blocks)


app.command("list")(memory_blocks.list_blocks)
app.command("create")(memory_blocks.create)
app.command("attach")(memory_blocks.attach)
app.command("detach")(memory_blocks.detach)
app.command("edit")(memory_edit.edit)
app.command("trust")(memory_edit.trust)
app.command("log")(memory_history.log)
app.command("diff")(memory_history.diff)
app.command("blame")(memory_history.blame)
app.command("revert")(memory_history.revert)


@app.command("delete")
@online
def delete_block(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: LabelArgument,
    purge: Annotated[
        bool, typer.Option("--purge", help="Destroy it with its whole history; asks first.")
    ] = False,
    reason: ReasonOption = "",
    yes: YesOption = False,
) -> None:
    """Delete a block; `strata memory restore` brings it back.

    It asks before it purges a block, or deletes one that other agents share.
    """

    async def delete(client: GatewayClient) -> str:
        agent_id = await client.agent_id(agent)
        if purge:
            # A deleted block can still be purged.
            block_id = await known_block_id(client, agent_id, label)
            confirm(
                f"Destroy {label} with its whole history, for every agent that has it?",
                yes=yes,
                otherwise="Purging cannot be undone.",
            )
        else:
            block = await attached_block(client, agent_id, label)
            block_id, sharers = block.id, len(block.agent_ids)
            if sharers > 1:
                confirm(
                    f"Delete {label}, which {sharers} agents share, for all of them?",
                    yes=yes,
                    otherwise=f"{sharers} agents share this block.",
                )
        request = pb.DeleteBlockRequest(
            request_id=new_request_id(), block_id=block_id, purge=purge, reason=reason
        )
        await client.blocks.DeleteBlock(request)
        return label

    gone = safe(connection.run(delete))
    if purge:
        typer.echo(f"Purged {gone}.")
    else:
        typer.echo(f"Deleted {gone}. To bring it back: strata memory restore {safe(agent)} {gone}")


@app.command("restore")
@online
def restore_block(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: LabelArgument,
    block: Annotated[
        str,
        typer.Option(
            "--block",
            metavar="ID",
            help="The block. Default: the last one with this label.",
            show_default=False,
        ),
    ] = "",
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Bring back a block that was deleted or detached."""

    async def restore(client: GatewayClient) -> pb.Block:
        agent_id = await client.agent_id(agent)
        await _check_free(client, agent_id, label)
        lost_id = block or await _last_id(client, agent_id, label)
        newest = await newest_version(client, lost_id)
        if newest.operation == "delete":
            undo = pb.RevertBlockRequest(
                request_id=new_request_id(),
                block_id=lost_id,
                revision=newest.revision,
                reason=reason or "restored on the command line",
            )
            await client.blocks.RevertBlock(undo)
        attach = pb.AttachBlockRequest(
            request_id=new_request_id(), agent_id=agent_id, block_id=lost_id
        )
        return (await client.blocks.AttachBlock(attach)).block

    restored = connection.run(restore)
    if as_json:
        print_json(restored)
    else:
        typer.echo(f"{safe(restored.label)} is back, at revision {restored.revision}.")


async def _last_id(client: GatewayClient, agent_id: str, label: str) -> str:
    try:
        return await known_block_id(client, agent_id, label)
    except NotFoundError as error:
        raise NotFoundError(
            f'The agent never had a block "{label}", or it was purged.', reason=error.reason
        ) from error


async def _check_free(client: GatewayClient, agent_id: str, label: str) -> None:
    try:
        await attached_block(client, agent_id, label)
    except NotFoundError as error:
        if error.reason is not Reason.BLOCK_NOT_FOUND:
            raise
        return
    raise AlreadyExistsError(
        f'The agent has a block "{label}". To go back in its history: strata memory revert',
        reason=Reason.NAME_TAKEN,
    )


@app.command("lint")
@online
def lint_memory(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: OptionalLabelArgument = "",
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 1 if there is a finding.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check memory for duplicates, relative dates, long lines and nearly full blocks."""

    async def read(client: GatewayClient) -> pb.LintMemoryResponse:
        agent_id = await client.agent_id(agent)
        request = pb.LintMemoryRequest(agent_id=agent_id)
        if label:
            block = await attached_block(client, agent_id, label)
            request = pb.LintMemoryRequest(block_id=block.id)
        return await client.blocks.LintMemory(request)

    response = connection.run(read)
    if as_json:
        print_json(response)
    else:
        print_table(
            ["where", "about", "what to do", "text"],
            [
                (
                    f"{finding.label}:{finding.line}" if finding.line else finding.label,
                    enum_name(pb.LintRule, finding.rule),
                    finding.message,
                    clipped(finding.text, _TEXT_CHARS),
                )
                for finding in response.findings
            ],
            empty="No findings.",
        )
        if response.findings:
            note("To change a block: strata memory edit")
    sys.stdout.flush()
    if check and response.findings:
        raise typer.Exit(EXIT_FAILURE)


app.command("pull")(memory_sync.pull)
app.command("push")(memory_sync.push)
