"""``strata files``: uploads, lists and deletes files of folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.commands import file_access
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.files.file_windows import window_of
from strata.cli.files.references import FolderArgument, file_named, folder_named
from strata.cli.files.uploads import (
    UploadBars,
    Uploaded,
    UploadLines,
    checked_paths,
    state_of,
    upload,
    wait,
)
from strata.cli.options import GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import (
    error_console,
    note,
    print_fields,
    print_json,
    print_listing,
    print_table,
    safe,
    when,
)
from strata.protocol.errors import NotFoundError

app = typer.Typer(help="Upload, open and search files.", no_args_is_help=True, add_completion=False)


FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="FOLDER/FILE, or an id.")]


@app.command("upload")
@online
def upload_files(
    connection: GatewayOptions,
    folder: FolderArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files to upload.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace files of the same names.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the folder if there is none.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until they are parsed and indexed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload files to a folder, and wait until they are parsed and indexed.

    Supported are text, Markdown, source code, CSV, HTML, PDF and DOCX.
    """
    checked_paths(paths)
    screen = error_console()
    view: UploadBars | UploadLines = UploadBars(screen) if screen.is_terminal else UploadLines(note)

    async def work(client: GatewayClient) -> list[Uploaded]:
        target = await _target(client, folder, create=create)
        with view:
            done = [await upload(client, target, path, view, replace=replace) for path in paths]
            if not no_wait:
                done = [await wait(client, uploaded, view) for uploaded in done]
        return done

    done = connection.run(work)
    _print_uploads(done, as_json=as_json)
    if any(upload_.problem for upload_ in done):
        raise typer.Exit(EXIT_FAILURE)


async def _target(client: GatewayClient, folder: str, *, create: bool) -> pb.Folder:
    try:
        return await folder_named(client, folder)
    except NotFoundError:
        if not create:
            raise
    request = pb.CreateFolderRequest(request_id=new_request_id(), name=folder)
    return (await client.files.CreateFolder(request)).folder


def _print_uploads(done: Sequence[Uploaded], *, as_json: bool) -> None:
    if as_json:
        print_json(
            pb.ListFilesResponse(files=[uploaded.file for uploaded in done if uploaded.file])
        )
    elif any(uploaded.file for uploaded in done):
        print_table(
            ["name", "state", "lines", "bytes", "id"],
            [(*_row(uploaded.file)[:4], uploaded.file.id) for uploaded in done if uploaded.file],
            empty="",
        )
    for uploaded in done:
        if uploaded.problem:
            line = Text(safe(f"{uploaded.name}: {uploaded.problem}"), style="red")
            error_console().print(line, soft_wrap=True)


@app.command("list")
@online
def list_files(
    connection: GatewayOptions,
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="Name or id of a folder.", show_default=False),
    ] = "",
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            autocompletion=complete_agent,
            help="Files of all folders of this agent, and which are open.",
        ),
    ] = "",
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the files of a folder, or of an agent."""
    if bool(folder) == bool(agent):
        raise UsageError("Give a folder, or --agent.")

    async def read(client: GatewayClient) -> pb.ListFilesResponse:
        if agent:
            request = pb.ListFilesRequest(agent_id=await client.agent_id(agent))
        else:
            request = pb.ListFilesRequest(folder_id=(await folder_named(client, folder)).id)
        return await first_of(client.files.ListFiles, request, "files", limit)

    listing = connection.run(read)
    windows = {open_file.file_id: window_of(open_file) for open_file in listing.open_files}
    columns = ["name", "state", "lines", "bytes", "uploaded", "id"]
    rows = [[*_row(file), file.id] for file in listing.files]
    if agent:
        columns = ["open", *columns]
        rows = [
            [windows.get(file.id, ""), *row] for file, row in zip(listing.files, rows, strict=True)
        ]
    print_listing(
        listing,
        columns,
        rows,
        empty="No files. Upload some with: strata files upload FOLDER PATH",
        as_json=as_json,
    )
    for file in () if as_json else listing.files:
        if file.error:
            note(f"{file.name}: {file.error}")


@app.command("show")
@online
def show_file(connection: GatewayOptions, file: FileArgument, as_json: JsonOption = False) -> None:
    """Show the metadata of a file; strata files open shows its text to an agent."""
    stored_file = connection.run(lambda client: file_named(client, file))
    if as_json:
        print_json(stored_file)
        return
    print_fields(
        [
            ("name", stored_file.name),
            ("id", stored_file.id),
            ("folder", stored_file.folder_id),
            ("type", stored_file.media_type),
            ("bytes", f"{stored_file.size_bytes:,}"),
            ("lines", f"{stored_file.line_count:,}"),
            ("state", state_of(stored_file)),
            ("error", stored_file.error),
            ("sha-256", stored_file.content_hash),
            ("uploaded", when(stored_file.create_time)),
        ]
    )


@app.command("delete")
@online
def delete_file(
    connection: GatewayOptions,
    file: FileArgument,
    yes: YesOption = False,
) -> None:
    """Delete a file."""

    async def delete(client: GatewayClient) -> str:
        target = await file_named(client, file)
        confirm(f"Delete {target.name}?", yes=yes, otherwise="Deleting cannot be undone.")
        await client.files.DeleteFile(pb.DeleteFileRequest(file_id=target.id))
        return target.name

    typer.echo(f"Deleted {safe(connection.run(delete))}.")


app.command("open")(file_access.open_files)
app.command("close")(file_access.close_files)
app.command("read")(file_access.read_file)
app.command("grep")(file_access.grep_files)
app.command("search")(file_access.search_files)


def _row(file: pb.File) -> tuple[str, str, str, str, str]:

    size, lines = f"{file.size_bytes:,}", f"{file.line_count:,}"
    return file.name, state_of(file), lines, size, when(file.create_time)
