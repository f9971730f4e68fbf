"""``strata files``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.asking import YesOption, ask
from strata.cli.client import Client, first_of, new_request_id
from strata.cli.commands import files_reading
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.files.file_windows import window_of
from strata.cli.files.references import FolderArgument, file_named, folder_named
from strata.cli.files.uploading import (
    Bars,
    Lines,
    Uploaded,
    checked_paths,
    state_of,
    upload,
    wait,
)
from strata.cli.options import Connection, JsonOption, LimitOption, online
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
from strata.shared.errors import NotFoundError

app = typer.Typer(help="Upload, open and search files.", no_args_is_help=True, add_completion=False)


FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="FOLDER/FILE, or an id.")]


@app.command("upload")
@online
def upload_files(
    connection: Connection,
    folder: FolderArgument,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files to upload.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of files of the same names.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Make the folder if there is none.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until they are read and indexed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Upload files to a folder, and wait until they can be read and searched.

    Text, Markdown, source code, CSV, HTML, PDF and DOCX are read.
    """
    checked_paths(paths)
    screen = error_console()
    view: Bars | Lines = Bars(screen) if screen.is_terminal else Lines(note)

    async def work(client: Client) -> list[Uploaded]:
        target = await _target(client, folder, create=create)
        with view:
            done = [await upload(client, target, path, view, replace=replace) for path in paths]
            if not no_wait:
                done = [await wait(client, each, view) for each in done]
        return done

    done = connection.run(work)
    _print_uploads(done, as_json=as_json)
    if any(each.problem for each in done):
        raise typer.Exit(EXIT_FAILURE)


async def _target(client: Client, folder: str, *, create: bool) -> pb.Folder:
    try:
        return await folder_named(client, folder)
    except NotFoundError:
        if not create:
            raise
    request = pb.CreateFolderRequest(request_id=new_request_id(), name=folder)
    return (await client.files.CreateFolder(request)).folder


def _print_uploads(done: Sequence[Uploaded], *, as_json: bool) -> None:
    if as_json:
        print_json(pb.ListFilesResponse(files=[each.file for each in done if each.file]))
    elif any(each.file for each in done):
        print_table(
            ["name", "state", "lines", "bytes", "id"],
            [(*_row(each.file)[:4], each.file.id) for each in done if each.file],
            empty="",
        )
    for each in done:
        if each.problem:
            told = Text(safe(f"{each.name}: {each.problem}"), style="red")
            error_console().print(told, soft_wrap=True)


@app.command("list")
@online
def list_files(
    connection: Connection,
    folder: Annotated[
        str,
        typer.Argument(metavar="FOLDER", help="Name or id of a folder.", show_default=False),
    ] = "",
    agent: Annotated[
        str, typer.Option("--agent", help="Files of all folders of this agent, and what is open.")
    ] = "",
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the files of a folder, or of an agent."""
    if bool(folder) == bool(agent):
        raise UsageError("Give a folder, or --agent.")

    async def read(client: Client) -> pb.ListFilesResponse:
        if agent:
            request = pb.ListFilesRequest(agent_id=await client.agent_id(agent))
        else:
            request = pb.ListFilesRequest(folder_id=(await folder_named(client, folder)).id)
        return await first_of(client.files.ListFiles, request, "files", limit)

    found = connection.run(read)
    windows = {open_file.file_id: window_of(open_file) for open_file in found.open_files}
    columns = ["name", "state", "lines", "bytes", "uploaded", "id"]
    rows = [[*_row(file), file.id] for file in found.files]
    if agent:
        columns = ["open", *columns]
        rows = [
            [windows.get(file.id, ""), *row] for file, row in zip(found.files, rows, strict=True)
        ]
    print_listing(
        found,
        columns,
        rows,
        empty="No files. Upload some with: strata files upload FOLDER PATH",
        as_json=as_json,
    )
    for file in () if as_json else found.files:
        if file.error:
            note(f"{file.name}: {file.error}")


@app.command("show")
@online
def show_file(connection: Connection, file: FileArgument, as_json: JsonOption = False) -> None:
    """Show what is known of a file; strata files open shows its text to an agent."""
    found = connection.run(lambda client: file_named(client, file))
    if as_json:
        print_json(found)
        return
    print_fields(
        [
            ("name", found.name),
            ("id", found.id),
            ("folder", found.folder_id),
            ("type", found.media_type),
            ("bytes", f"{found.size_bytes:,}"),
            ("lines", f"{found.line_count:,}"),
            ("state", state_of(found)),
            ("error", found.error),
            ("sha-256", found.content_hash),
            ("uploaded", when(found.create_time)),
        ]
    )


@app.command("delete")
@online
def delete_file(
    connection: Connection,
    file: FileArgument,
    yes: YesOption = False,
) -> None:
    """Delete a file."""

    async def delete(client: Client) -> str:
        found = await file_named(client, file)
        ask(f"Delete {found.name}?", yes=yes, otherwise="Deleting cannot be undone.")
        await client.files.DeleteFile(pb.DeleteFileRequest(file_id=found.id))
        return found.name

    typer.echo(f"Deleted {safe(connection.run(delete))}.")


app.command("open")(files_reading.open_files)
app.command("close")(files_reading.close_files)
app.command("read")(files_reading.read_file)
app.command("grep")(files_reading.grep_files)
app.command("search")(files_reading.search_files)


def _row(file: pb.File) -> tuple[str, str, str, str, str]:

    size, lines = f"{file.size_bytes:,}", f"{file.line_count:,}"
    return file.name, state_of(file), lines, size, when(file.create_time)
