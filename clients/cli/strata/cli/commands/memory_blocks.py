"""``strata memory list``, ``create``, ``attach`` and ``detach``."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.arguments import MAX_INT32
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.commands.memory_edit import text_of_options
from strata.cli.commands.memory_history import LabelArgument
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import print_json, print_listing, safe, when
from strata.shared.agent_mcp.blocks import attached_block
from strata.shared.one_line import clipped

_TEXT_CHARS = 80


@online
def list_blocks(
    connection: GatewayOptions,
    agent: Annotated[
        str,
        typer.Option(
            "--agent", autocompletion=complete_agent, help="Only the blocks of this agent."
        ),
    ] = "",
    label: Annotated[str, typer.Option("--label", help="Only the blocks with this label.")] = "",
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Deleted blocks, too; not with --agent.")
    ] = False,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the memory blocks of the project, or of an agent."""

    async def read(client: GatewayClient) -> pb.ListBlocksResponse:
        request = pb.ListBlocksRequest(
            agent_id=await client.agent_id(agent) if agent else "",
            label=label,
            show_deleted=deleted,
        )
        return await first_of(client.blocks.ListBlocks, request, "blocks", limit)

    response = connection.run(read)
    print_listing(
        response,
        [
            "label",
            "characters",
            "revision",
            "agents",
            "changed",
            "text",
            "id",
            *(["deleted"] if deleted else []),
        ],
        [
            (
                block.label,
                f"{len(block.value)} of {block.limit}",
                str(block.revision),
                str(len(block.agent_ids)),
                when(block.update_time),
                clipped(block.value, _TEXT_CHARS),
                block.id,
                *([when(block.delete_time)] if deleted else []),
            )
            for block in response.blocks
        ],
        empty="No memory blocks.",
        as_json=as_json,
    )


@online
def create(
    connection: GatewayOptions,
    agent: AgentArgument,
    label: LabelArgument,
    value: Annotated[str | None, typer.Option("--value", help="Its text. Default: empty.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", help='File with its text; "-" reads the input.')
    ] = None,
    description: Annotated[
        str | None,
        typer.Option("--description", help="How it should guide the agent; shown to the model."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=0, max=MAX_INT32, help="Maximum number of characters; 0 for 20000."
        ),
    ] = 0,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Agents may not change it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a memory block and attach it to an agent."""
    request = pb.CreateBlockRequest(
        request_id=new_request_id(),
        block=pb.NewBlock(
            label=label,
            value=text_of_options(value, file) or "",
            description=description,
            limit=limit,
            read_only=read_only,
        ),
    )

    async def create_and_attach(client: GatewayClient) -> pb.Block:
        request.agent_id = await client.agent_id(agent)
        return (await client.blocks.CreateBlock(request)).block

    made = connection.run(create_and_attach)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"{safe(agent)} now has {safe(made.label)}: {made.id}")


@online
def attach(
    connection: GatewayOptions,
    agent: AgentArgument,
    block: Annotated[
        str,
        typer.Argument(metavar="BLOCK", help="Id of the block; with --from, its label there."),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            autocompletion=complete_agent,
            metavar="AGENT",
            help="An agent that has the block.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Attach a block to an agent: all agents that have it see the same text and may change it."""

    async def work(client: GatewayClient) -> pb.Block:
        block_id = block
        if source:
            block_id = (await attached_block(client, await client.agent_id(source), block)).id
        request = pb.AttachBlockRequest(
            request_id=new_request_id(), agent_id=await client.agent_id(agent), block_id=block_id
        )
        return (await client.blocks.AttachBlock(request)).block

    attached = connection.run(work)
    if as_json:
        print_json(attached)
    else:
        count = len(attached.agent_ids)
        shared = f", shared by {count} agents" if count > 1 else ""
        typer.echo(f"{safe(agent)} now has {safe(attached.label)}{shared}.")


@online
def detach(connection: GatewayOptions, agent: AgentArgument, label: LabelArgument) -> None:
    """Detach a block from an agent; the block stays, and restore attaches it again."""

    async def work(client: GatewayClient) -> None:
        agent_id = await client.agent_id(agent)
        block = await attached_block(client, agent_id, label)
        request = pb.DetachBlockRequest(
            request_id=new_request_id(), agent_id=agent_id, block_id=block.id
        )
        await client.blocks.DetachBlock(request)

    connection.run(work)
    typer.echo(
        f"{safe(agent)} no longer has {safe(label)}. To attach it again: strata memory restore"
        f" {safe(agent)} {safe(label)}"
    )
