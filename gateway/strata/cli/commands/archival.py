"""``strata archival``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.cli.client import Client, first_of, new_request_id
from strata.cli.options import AgentArgument, Connection, JsonOption, LimitOption, online
from strata.cli.output import clipped, print_json, print_listing, when

app = typer.Typer(help="Store and search passages.", no_args_is_help=True, add_completion=False)

_TEXT_CHARS = 160
_MOST_HITS = 100

TagOption = Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")]


@app.command("insert")
@online
def insert_passage(
    connection: Connection,
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help='The text; "-" reads the input.')],
    tag: TagOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store a passage in the archive of an agent."""
    passage = pb.NewPassage(text=sys.stdin.read() if text == "-" else text, tags=tag or [])

    async def insert(client: Client) -> pb.InsertPassageResponse:
        request = pb.InsertPassageRequest(
            request_id=new_request_id(), agent_id=await client.agent_id(agent), passage=passage
        )
        return await client.passages.InsertPassage(request)

    stored = connection.run(insert)
    if as_json:
        print_json(stored)
    else:
        word = "It was there already" if stored.duplicate else "Stored"
        typer.echo(f"{word}: {stored.passage.id}")


@app.command("search")
@online
def search_passages(
    connection: Connection,
    agent: AgentArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words or a question.")],
    tag: TagOption = None,
    all_tags: Annotated[
        bool, typer.Option("--all-tags", help="Only passages with all the tags, not any.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MOST_HITS, help="How many at most.")
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """Search the passages of an agent, best first."""

    async def search(client: Client) -> pb.SearchPassagesResponse:
        request = pb.SearchPassagesRequest(
            agent_id=await client.agent_id(agent),
            query=query,
            tags=tag or [],
            tag_match_mode=pb.TAG_MATCH_MODE_ALL if all_tags else pb.TAG_MATCH_MODE_ANY,
            top_k=limit,
        )
        return await client.passages.SearchPassages(request)

    found = connection.run(search)
    print_listing(
        found,
        ["score", "text", "tags", "when", "id"],
        [(f"{hit.relevance.rrf_score:.4f}", *_row(hit.passage)) for hit in found.hits],
        empty="Nothing found.",
        as_json=as_json,
    )


@app.command("list")
@online
def list_archival(
    connection: Connection,
    agent: Annotated[
        str,
        typer.Argument(
            metavar="[AGENT]",
            help="Name or id of an agent, for its passages; without one, the archives.",
            show_default=False,
        ),
    ] = "",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only passages with this tag.")
    ] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the passages of an agent, or the archives of the project."""
    if agent:
        _list_passages(connection, agent, tag or [], limit, as_json=as_json)
    else:
        _list_archives(connection, limit, as_json=as_json)


def _list_passages(
    connection: Connection, agent: str, tags: list[str], limit: int, *, as_json: bool
) -> None:

    async def read(client: Client) -> pb.ListPassagesResponse:
        request = pb.ListPassagesRequest(agent_id=await client.agent_id(agent), tags=tags)
        return await first_of(client.passages.ListPassages, request, "passages", limit)

    found = connection.run(read)
    print_listing(
        found,
        ["text", "tags", "when", "id"],
        [_row(passage) for passage in found.passages],
        empty="No passages.",
        as_json=as_json,
    )


def _list_archives(connection: Connection, limit: int, *, as_json: bool) -> None:

    async def read(client: Client) -> archive_pb.ListArchivesResponse:
        request = archive_pb.ListArchivesRequest()
        return await first_of(client.archives.ListArchives, request, "archives", limit)

    found = connection.run(read)
    print_listing(
        found,
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
            for archive in found.archives
        ],
        empty="No archives. An agent's own is made with its first passage.",
        as_json=as_json,
    )


def _row(passage: pb.Passage) -> tuple[str, str, str, str]:

    text = clipped(passage.text, _TEXT_CHARS)
    return text, ", ".join(passage.tags), when(passage.create_time), passage.id
