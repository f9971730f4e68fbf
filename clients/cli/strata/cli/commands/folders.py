"""``strata folders``: folders of files, and the agents that have them."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.confirmation import YesOption, confirm
from strata.cli.files.references import FolderArgument, folder_named
from strata.cli.options import AgentArgument, GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import print_fields, print_json, print_listing, safe, when
from strata.shared.one_line import clipped

app = typer.Typer(
    help="Create folders of files, and attach them to agents.",
    no_args_is_help=True,
    add_completion=False,
)

_DESCRIPTION_CHARS = 60


@app.command("create")
@online
def create_folder(
    connection: GatewayOptions,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    description: Annotated[
        str, typer.Option("--description", help="What is in it; shown to the model.")
    ] = "",
    instructions: Annotated[
        str, typer.Option("--instructions", help="How to use it; shown to the model.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Create an empty folder."""
    request = pb.CreateFolderRequest(
        request_id=new_request_id(), name=name, description=description, instructions=instructions
    )

    async def create(client: GatewayClient) -> pb.Folder:
        return (await client.files.CreateFolder(request)).folder

    _print_folder(connection.run(create), as_json=as_json)


@app.command("list")
@online
def list_folders(
    connection: GatewayOptions,
    agent: Annotated[
        str,
        typer.Option(
            "--agent", autocompletion=complete_agent, help="Only the folders of this agent."
        ),
    ] = "",
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the folders of the project, or of an agent."""

    async def read(client: GatewayClient) -> pb.ListFoldersResponse:
        agent_id = await client.agent_id(agent) if agent else ""
        request = pb.ListFoldersRequest(agent_id=agent_id)
        return await first_of(client.files.ListFolders, request, "folders", limit)

    listing = connection.run(read)
    print_listing(
        listing,
        ["name", "files", "created", "description", "id"],
        [
            (
                folder.name,
                str(folder.file_count),
                when(folder.create_time),
                clipped(folder.description, _DESCRIPTION_CHARS),
                folder.id,
            )
            for folder in listing.folders
        ],
        empty="No folders. Create one with: strata folders create NAME",
        as_json=as_json,
    )


@app.command("show")
@online
def show_folder(
    connection: GatewayOptions, folder: FolderArgument, as_json: JsonOption = False
) -> None:
    """Show a folder; strata files list shows its files."""
    stored_folder = connection.run(lambda client: folder_named(client, folder))
    _print_folder(stored_folder, as_json=as_json)


@app.command("delete")
@online
def delete_folder(
    connection: GatewayOptions, folder: FolderArgument, yes: YesOption = False
) -> None:
    """Delete a folder with its files."""

    async def delete(client: GatewayClient) -> str:
        target = await folder_named(client, folder)
        confirm(
            f"Delete {target.name} with its {target.file_count} files?",
            yes=yes,
            otherwise="Deleting cannot be undone.",
        )
        await client.files.DeleteFolder(pb.DeleteFolderRequest(folder_id=target.id))
        return target.name

    typer.echo(f"Deleted {safe(connection.run(delete))}.")


@app.command("attach")
@online
def attach_folder(
    connection: GatewayOptions,
    agent: AgentArgument,
    folder: FolderArgument,
    open_count: Annotated[
        int, typer.Option("--open", min=0, help="Open this many of its files at once.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Attach a folder to an agent, which can then open and search the files."""

    async def attach(client: GatewayClient) -> pb.Folder:
        request = pb.AttachFolderRequest(
            agent_id=await client.agent_id(agent),
            folder_id=(await folder_named(client, folder)).id,
            open_count=open_count,
        )
        return (await client.files.AttachFolder(request)).folder

    attached = connection.run(attach)
    if as_json:
        print_json(attached)
    else:
        files = "1 file" if attached.file_count == 1 else f"{attached.file_count} files"
        typer.echo(f"{safe(agent)} now has {safe(attached.name)}, with {files}.")


@app.command("detach")
@online
def detach_folder(connection: GatewayOptions, agent: AgentArgument, folder: FolderArgument) -> None:
    """Detach a folder from an agent; the files stay."""

    async def detach(client: GatewayClient) -> str:
        detached = await folder_named(client, folder)
        request = pb.DetachFolderRequest(
            agent_id=await client.agent_id(agent), folder_id=detached.id
        )
        await client.files.DetachFolder(request)
        return detached.name

    typer.echo(f"{safe(agent)} no longer has {safe(connection.run(detach))}.")


def _print_folder(folder: pb.Folder, *, as_json: bool) -> None:
    if as_json:
        print_json(folder)
        return
    print_fields(
        [
            ("name", folder.name),
            ("id", folder.id),
            ("description", folder.description),
            ("instructions", folder.instructions),
            ("files", str(folder.file_count)),
            ("created", when(folder.create_time)),
        ]
    )
