"""``strata archival archives``: archives of passages that several agents can share."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from strata.api.archival.v1 import archive_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.archival.references import ArchiveArgument, archive_id, archive_named
from strata.cli.arguments import MAX_INT32
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import UsageError
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import print_fields, print_json, print_listing, safe, when

app = typer.Typer(
    help="Create archives, with their own embedding models, and attach them to agents.",
    no_args_is_help=True,
    add_completion=False,
)

_DAY_S = int(timedelta(days=1).total_seconds())


@app.command("list")
@online
def list_archives(
    connection: GatewayOptions,
    agent: Annotated[
        str,
        typer.Option(
            "--agent", autocompletion=complete_agent, help="Only the archives of this agent."
        ),
    ] = "",
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the archives of the project, or of an agent."""
    show_archives(connection, agent, limit, as_json=as_json)


def show_archives(connection: GatewayOptions, agent: str, limit: int, *, as_json: bool) -> None:
    """Prints the archives of an agent, or of all agents if the name is empty."""

    async def read(client: GatewayClient) -> pb.ListArchivesResponse:
        request = pb.ListArchivesRequest(agent_id=await client.agent_id(agent) if agent else "")
        return await first_of(client.archives.ListArchives, request, "archives", limit)

    response = connection.run(read)
    print_listing(
        response,
        ["name", "passages", "not indexed yet", "embedding", "agents", "id"],
        [
            (
                archive.name,
                str(archive.passage_count),
                str(archive.unindexed_count),
                archive.embedding_model,
                str(len(archive.agent_ids)),
                archive.id,
            )
            for archive in response.archives
        ],
        empty="No archives. An agent's own archive is created with its first passage.",
        as_json=as_json,
    )


@app.command("show")
@online
def show_archive(
    connection: GatewayOptions, archive: ArchiveArgument, as_json: JsonOption = False
) -> None:
    """Show an archive and the agents that have it."""
    stored_archive = connection.run(lambda client: archive_named(client, archive))
    _show(stored_archive, as_json=as_json)


@app.command("create")
@online
def create_archive(
    connection: GatewayOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    description: Annotated[str, typer.Option("--description", help="What is in it.")] = "",
    embedding_model: Annotated[
        str,
        typer.Option(
            "--embedding-model",
            metavar="MODEL",
            help="Its permanent embedding model. Default: the server's, which may change.",
            show_default=False,
        ),
    ] = "",
    days: Annotated[
        int,
        typer.Option(
            "--days",
            min=0,
            max=MAX_INT32,
            help="Destroy passages of this age.",
            show_default="never",
        ),
    ] = 0,
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            autocompletion=complete_agent,
            help="Attach it to this agent.",
            metavar="AGENT",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Create an empty archive."""
    request = pb.CreateArchiveRequest(
        request_id=new_request_id(),
        name=name,
        description=description,
        embedding_model=embedding_model,
        time_to_live_seconds=days * _DAY_S,
    )

    async def create(client: GatewayClient) -> pb.Archive:
        if agent:
            request.agent_id = await client.agent_id(agent)
        return (await client.archives.CreateArchive(request)).archive

    _show(connection.run(create), as_json=as_json)


@app.command("update")
@online
def update_archive(
    connection: GatewayOptions,
    archive: ArchiveArgument,
    name: Annotated[str | None, typer.Option("--name", help="Its new name.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="What is in it.")] = None,
    days: Annotated[
        int | None,
        typer.Option(
            "--days",
            min=0,
            max=MAX_INT32,
            help="Destroy passages of this age, also present ones; 0 for never.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the name, the description or the time-to-live of an archive."""
    if name is None and description is None and days is None:
        raise UsageError("Nothing to change: give --name, --description or --days.")
    request = pb.UpdateArchiveRequest(
        request_id=new_request_id(),
        name=name,
        description=description,
        time_to_live_seconds=None if days is None else days * _DAY_S,
    )

    async def update(client: GatewayClient) -> pb.Archive:
        request.archive_id = await archive_id(client, archive)
        return (await client.archives.UpdateArchive(request)).archive

    _show(connection.run(update), as_json=as_json)


@app.command("attach")
@online
def attach_archive(
    connection: GatewayOptions,
    agent: AgentArgument,
    archive: ArchiveArgument,
    as_json: JsonOption = False,
) -> None:
    """Attach an archive to an agent, which then searches its passages."""

    async def attach(client: GatewayClient) -> pb.Archive:
        request = pb.AttachArchiveRequest(
            agent_id=await client.agent_id(agent), archive_id=await archive_id(client, archive)
        )
        return (await client.archives.AttachArchive(request)).archive

    attached = connection.run(attach)
    if as_json:
        print_json(attached)
    else:
        passages = _passages(attached.passage_count)
        typer.echo(f"{safe(agent)} now has {safe(attached.name)}, with {passages}.")


@app.command("detach")
@online
def detach_archive(
    connection: GatewayOptions, agent: AgentArgument, archive: ArchiveArgument
) -> None:
    """Detach an archive from an agent; the passages stay."""

    async def detach(client: GatewayClient) -> str:
        detached = await archive_named(client, archive)
        request = pb.DetachArchiveRequest(
            agent_id=await client.agent_id(agent), archive_id=detached.id
        )
        await client.archives.DetachArchive(request)
        return detached.name

    typer.echo(f"{safe(agent)} no longer has {safe(connection.run(detach))}.")


@app.command("delete")
@online
def delete_archive(
    connection: GatewayOptions, archive: ArchiveArgument, yes: YesOption = False
) -> None:
    """Delete an archive with its passages."""

    async def delete(client: GatewayClient) -> tuple[str, int]:
        target = await archive_named(client, archive)
        confirm(
            f"Delete {safe(target.name)} with {_passages(target.passage_count)}?",
            yes=yes,
            otherwise="Deleting cannot be undone.",
        )
        done = await client.archives.DeleteArchive(pb.DeleteArchiveRequest(archive_id=target.id))
        return target.name, done.deleted_passages

    name, count = connection.run(delete)
    typer.echo(f"Deleted {safe(name)} with {_passages(count)}.")


def _show(archive: pb.Archive, *, as_json: bool) -> None:
    if as_json:
        print_json(archive)
        return
    days = archive.time_to_live_seconds // _DAY_S
    print_fields(
        [
            ("name", archive.name),
            ("id", archive.id),
            ("description", archive.description),
            ("embedding", f"{archive.embedding_model}, {archive.embedding_dim:,} numbers"),
            ("passages are kept", f"for {days:,} day{'' if days == 1 else 's'}" if days else ""),
            ("passages", f"{archive.passage_count:,}"),
            ("agents", ", ".join(archive.agent_ids)),
            ("created", when(archive.create_time)),
        ]
    )


def _passages(count: int) -> str:
    return "1 passage" if count == 1 else f"{count:,} passages"
