"""``strata files open``, ``close``, ``read``, ``grep``, ``search``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.client import GatewayClient, new_request_id
from strata.cli.failures import UsageError
from strata.cli.files.file_windows import asked_window, window_of
from strata.cli.files.references import file_named
from strata.cli.options import (
    AgentArgument,
    GatewayOptions,
    JsonOption,
    LimitOption,
    QueryArgument,
    online,
)
from strata.cli.output import console, note, print_json, print_listing, safe, when

_MAX_HITS = 50


@online
def open_files(
    connection: GatewayOptions,
    agent: AgentArgument,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER/FILE[:FROM-TO]",
            help="Files to open, with the range of lines; without one, from the beginning.",
        ),
    ],
    close_others: Annotated[
        bool, typer.Option("--close-others", help="Close all other files.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Open files in the memory of an agent, where its model sees them."""
    windows = [asked_window(name) for name in names]

    async def work(client: GatewayClient) -> pb.OpenFilesResponse:
        reader = await client.agent(agent)
        request = pb.OpenFilesRequest(
            request_id=new_request_id(),
            agent_id=reader.id,
            windows=windows,
            close_all_others=close_others,
            max_files_open=reader.max_files_open,
        )
        return await client.files.OpenFiles(request)

    response = connection.run(work)
    if not as_json:
        note(response.message)
    _print_open(response, response.open_files, as_json=as_json)


@online
def close_files(
    connection: GatewayOptions,
    agent: AgentArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER/FILE", help="Files to close.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Close all.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Close files in the memory of an agent."""
    if bool(names) == everything:
        raise UsageError("Name the files to close, or give --all.")

    async def work(client: GatewayClient) -> pb.CloseFilesResponse:
        request = pb.CloseFilesRequest(
            agent_id=await client.agent_id(agent), file_names=names or []
        )
        return await client.files.CloseFiles(request)

    response = connection.run(work)
    _print_open(response, response.open_files, as_json=as_json)


@online
def read_file(
    connection: GatewayOptions,
    agent: AgentArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="FOLDER/FILE, or an id.")],
    first_line: Annotated[
        int, typer.Option("--from", min=1, help="The first line to print, from 1.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Print a file as an agent can read it, without opening it in its memory."""

    async def read(client: GatewayClient) -> pb.ReadFileResponse:
        stored_file = await file_named(client, file)
        request = pb.ReadFileRequest(
            agent_id=await client.agent_id(agent),
            file_id=stored_file.id,
            first_line=first_line,
            content_hash=stored_file.content_hash,
        )
        lines = await client.files.ReadFile(request)
        while first_line - 1 + len(lines.lines) < lines.line_count:
            request.first_line = first_line + len(lines.lines)
            page = await client.files.ReadFile(request)
            if not page.lines:
                break
            lines.lines.extend(page.lines)
        return lines

    response = connection.run(read)
    if as_json:
        print_json(response)
        return
    screen = console()
    for line in response.lines:
        screen.print(Text(safe(line)), soft_wrap=True)


@online
def grep_files(
    connection: GatewayOptions,
    agent: AgentArgument,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Regular expression; case does not matter.")
    ],
    include: Annotated[
        str,
        typer.Option(
            "--include", help='Only files like this: "*.py" or "docs/*.md".', show_default=False
        ),
    ] = "",
    context: Annotated[
        int, typer.Option("--context", "-C", min=0, max=20, help="Lines around a match.")
    ] = 0,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """Search the files of an agent for a pattern."""

    async def search(client: GatewayClient) -> pb.GrepFilesResponse:
        request = pb.GrepFilesRequest(
            agent_id=await client.agent_id(agent),
            pattern=pattern,
            include=include,
            context_lines=context,
        )
        return await _matches(client, request, limit)

    response = connection.run(search)
    if as_json:
        print_json(response)
        return
    _print_matches(response, context=context)


async def _matches(
    client: GatewayClient, request: pb.GrepFilesRequest, limit: int
) -> pb.GrepFilesResponse:
    whole = await client.files.GrepFiles(request)
    while 0 < len(whole.matches) < min(limit, whole.total_matches):
        request.offset = len(whole.matches)
        page = await client.files.GrepFiles(request)
        if not page.matches:
            break
        whole.matches.extend(page.matches)
    del whole.matches[limit:]
    return whole


def _print_matches(response: pb.GrepFilesResponse, *, context: int) -> None:
    screen = console()
    for number, match in enumerate(response.matches):
        if context and number:
            screen.print(Text("--", style="dim"))
        heading = Text(f"{safe(match.file_name)}:{match.line}", style="cyan")
        if context:
            screen.print(heading, soft_wrap=True)
            for line in match.lines:
                screen.print(Text(f"  {safe(line)}"), soft_wrap=True)
        else:
            # Each line starts with its number.
            text = match.lines[0].partition(": ")[2] if match.lines else ""
            screen.print(heading + Text(f": {safe(text)}"), soft_wrap=True)
    if not response.matches:
        note("Nothing found.")
    elif len(response.matches) < response.total_matches:
        note(f"There are {response.total_matches} matches; raise --limit to see more of them.")
    if response.truncated:
        note("The search reached a limit: there may be more. Narrow it with --include.")


@online
def search_files(
    connection: GatewayOptions,
    agent: AgentArgument,
    query: QueryArgument,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MAX_HITS, help="Maximum number of passages.")
    ] = 5,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how many unrelated pieces were excluded.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Search the files of an agent by meaning, best first."""

    async def search(client: GatewayClient) -> pb.SearchFilesResponse:
        request = pb.SearchFilesRequest(
            agent_id=await client.agent_id(agent), query=query, limit=limit, explain=explain
        )
        return await client.files.SearchFiles(request)

    response = connection.run(search)
    if as_json:
        print_json(response)
        return
    screen = console()
    for number, hit in enumerate(response.hits):
        if number:
            screen.print()
        location = f"{hit.file_name} (lines {hit.start_line}-{hit.end_line})"
        heading = Text(safe(location), style="bold cyan")
        heading.append(f"  {hit.score:.4f}", style="dim")
        screen.print(heading, soft_wrap=True)
        screen.print(Text(safe(hit.text)), soft_wrap=True)
    if not response.hits:
        note("Nothing found.")
    if explain:
        note(f"{response.below_floor} of the nearest pieces are excluded as unrelated.")
    if response.unindexed_files:
        note(f"{response.unindexed_files} files are not indexed yet, and may be missed.")


def _print_open(
    response: pb.OpenFilesResponse | pb.CloseFilesResponse,
    windows: Sequence[pb.OpenFile],
    *,
    as_json: bool,
) -> None:

    print_listing(
        response,
        ["open file", "lines", "last used"],
        [
            (window.file_name, window_of(window), when(window.last_access_time))
            for window in windows
        ],
        empty="No files are open.",
        as_json=as_json,
    )
