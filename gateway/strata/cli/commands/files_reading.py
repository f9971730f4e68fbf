"""``strata files open``, ``close``, ``read``, ``grep``, ``search``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.client import Client, new_request_id
from strata.cli.failures import UsageError
from strata.cli.files.file_windows import asked_window, window_of
from strata.cli.files.references import file_named
from strata.cli.options import (
    AgentArgument,
    Connection,
    JsonOption,
    LimitOption,
    QueryArgument,
    online,
)
from strata.cli.output import console, note, print_json, print_listing, safe, when

_MOST_HITS = 50


@online
def open_files(
    connection: Connection,
    agent: AgentArgument,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER/FILE[:FROM-TO]",
            help="What to open, and from which line to which; without them, from the beginning.",
        ),
    ],
    close_others: Annotated[
        bool, typer.Option("--close-others", help="Close all other files.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Open files in the memory of an agent, where its model sees them."""
    windows = [asked_window(name) for name in names]

    async def work(client: Client) -> pb.OpenFilesResponse:
        found = await client.agent(agent)
        request = pb.OpenFilesRequest(
            request_id=new_request_id(),
            agent_id=found.id,
            windows=windows,
            close_all_others=close_others,
            max_files_open=found.max_files_open,
        )
        return await client.files.OpenFiles(request)

    done = connection.run(work)
    if not as_json:
        note(done.message)
    _print_open(done, done.open_files, as_json=as_json)


@online
def close_files(
    connection: Connection,
    agent: AgentArgument,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER/FILE", help="What to close.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Close all.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Close files in the memory of an agent."""
    if bool(names) == everything:
        raise UsageError("Name the files to close, or give --all.")

    async def work(client: Client) -> pb.CloseFilesResponse:
        request = pb.CloseFilesRequest(
            agent_id=await client.agent_id(agent), file_names=names or []
        )
        return await client.files.CloseFiles(request)

    done = connection.run(work)
    _print_open(done, done.open_files, as_json=as_json)


@online
def read_file(
    connection: Connection,
    agent: AgentArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="FOLDER/FILE, or an id.")],
    first_line: Annotated[
        int, typer.Option("--from", min=1, help="The first line to print, from 1.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Print a file as an agent can read it, without opening it in its memory."""

    async def read(client: Client) -> pb.ReadFileResponse:
        named = await file_named(client, file)
        request = pb.ReadFileRequest(
            agent_id=await client.agent_id(agent),
            file_id=named.id,
            first_line=first_line,
            content_hash=named.content_hash,
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
    connection: Connection,
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

    async def search(client: Client) -> pb.GrepFilesResponse:
        request = pb.GrepFilesRequest(
            agent_id=await client.agent_id(agent),
            pattern=pattern,
            include=include,
            context_lines=context,
        )
        return await _matches(client, request, limit)

    found = connection.run(search)
    if as_json:
        print_json(found)
        return
    _print_matches(found, context=context)


async def _matches(
    client: Client, request: pb.GrepFilesRequest, limit: int
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


def _print_matches(found: pb.GrepFilesResponse, *, context: int) -> None:
    screen = console()
    for number, match in enumerate(found.matches):
        if context and number:
            screen.print(Text("--", style="dim"))
        heading = Text(f"{safe(match.file_name)}:{match.line}", style="cyan")
        if context:
            screen.print(heading, soft_wrap=True)
            for line in match.lines:
                screen.print(Text(f"  {safe(line)}"), soft_wrap=True)
        else:
            # Each line comes with its number.
            text = match.lines[0].partition(": ")[2] if match.lines else ""
            screen.print(heading + Text(f": {safe(text)}"), soft_wrap=True)
    if not found.matches:
        note("Nothing found.")
    elif len(found.matches) < found.total_matches:
        note(f"There are {found.total_matches} matches; raise --limit to see more of them.")
    if found.truncated:
        note("The search ended at one of its limits: there may be more. Narrow it with --include.")


@online
def search_files(
    connection: Connection,
    agent: AgentArgument,
    query: QueryArgument,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MOST_HITS, help="How many at most.")
    ] = 5,
    explain: Annotated[
        bool, typer.Option("--explain", help="Tell how many unrelated pieces were left out.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Search the files of an agent by meaning, best first."""

    async def search(client: Client) -> pb.SearchFilesResponse:
        request = pb.SearchFilesRequest(
            agent_id=await client.agent_id(agent), query=query, limit=limit, explain=explain
        )
        return await client.files.SearchFiles(request)

    found = connection.run(search)
    if as_json:
        print_json(found)
        return
    screen = console()
    for number, hit in enumerate(found.hits):
        if number:
            screen.print()
        place = f"{hit.file_name} (lines {hit.start_line}-{hit.end_line})"
        heading = Text(safe(place), style="bold cyan")
        heading.append(f"  {hit.score:.4f}", style="dim")
        screen.print(heading, soft_wrap=True)
        screen.print(Text(safe(hit.text)), soft_wrap=True)
    if not found.hits:
        note("Nothing found.")
    if explain:
        note(f"{found.below_floor} of the nearest pieces are left out as unrelated.")
    if found.unindexed_files:
        note(f"{found.unindexed_files} files are not indexed yet, and may be missed.")


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
