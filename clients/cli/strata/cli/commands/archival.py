"""``strata archival``: stores, lists and searches the passages of an agent."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.cli.archival.references import archive_id
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.commands import archival_import, archival_life, archives
from strata.cli.failures import UsageError
from strata.cli.options import (
    AgentArgument,
    GatewayOptions,
    JsonOption,
    LimitOption,
    QueryArgument,
    online,
)
from strata.cli.output import labels_line, note, print_json, print_listing, when
from strata.cli.search_notes import outdated_mark, print_search_notes
from strata.shared.one_line import clipped

app = typer.Typer(help="Store and search passages.", no_args_is_help=True, add_completion=False)

_TEXT_CHARS = 160
_MAX_HITS = 100

TagOption = Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")]


@app.command("insert")
@online
def insert_passage(
    connection: GatewayOptions,
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help='The text; "-" reads the input.')],
    tag: TagOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store a passage in the archive of an agent."""
    passage = pb.NewPassage(text=sys.stdin.read() if text == "-" else text, tags=tag or [])

    async def insert(client: GatewayClient) -> pb.InsertPassageResponse:
        request = pb.InsertPassageRequest(
            request_id=new_request_id(), agent_id=await client.agent_id(agent), passage=passage
        )
        return await client.passages.InsertPassage(request)

    response = connection.run(insert)
    if as_json:
        print_json(response)
        return
    word = "Already stored" if response.duplicate else "Stored"
    typer.echo(f"{word}: {response.passage.id}")
    for passage_id in response.near_duplicate_ids:
        note(f"Nearly the same: {passage_id}")


@app.command("search")
@online
def search_passages(
    connection: GatewayOptions,
    agent: AgentArgument,
    query: QueryArgument,
    tag: TagOption = None,
    all_tags: Annotated[
        bool, typer.Option("--all-tags", help="Only passages with all the tags, not any.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MAX_HITS, help="Maximum number of passages.")
    ] = 10,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show why each passage matches, and what filters excluded."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Search the passages of an agent, best first."""

    async def search(client: GatewayClient) -> pb.SearchPassagesResponse:
        request = pb.SearchPassagesRequest(
            agent_id=await client.agent_id(agent),
            query=query,
            tags=tag or [],
            tag_match_mode=pb.TAG_MATCH_MODE_ALL if all_tags else pb.TAG_MATCH_MODE_ANY,
            top_k=limit,
            explain=explain,
        )
        return await client.passages.SearchPassages(request)

    response = connection.run(search)
    why = ["why"] if explain else []
    print_listing(
        response,
        ["score", "text", "tags", "when", "id", *why],
        [_hit_row(hit, explain=explain) for hit in response.hits],
        empty="Nothing found.",
        as_json=as_json,
    )
    if explain and not as_json:
        print_search_notes(response)


@app.command("list")
@online
def list_archival(
    connection: GatewayOptions,
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
    run: Annotated[
        str, typer.Option("--run", help="Only passages that this run stored.", metavar="ID")
    ] = "",
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted passages, too.")] = False,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the passages of an agent, or the archives of the project."""
    if agent:
        request = pb.ListPassagesRequest(tags=tag or [], run_id=run, show_deleted=deleted)
        _list_passages(connection, agent, request, limit, as_json=as_json)
    else:
        archives.show_archives(connection, "", limit, as_json=as_json)


@app.command("tags")
@online
def list_tags(
    connection: GatewayOptions,
    agent: Annotated[
        str,
        typer.Argument(metavar="[AGENT]", help="Name or id of an agent.", show_default=False),
    ] = "",
    archive: Annotated[
        str,
        typer.Option(
            "--archive", metavar="ARCHIVE", help="Name or id of an archive instead of an agent."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List the tags of an agent's passages, or of an archive's, and how many passages have them."""
    if bool(agent) == bool(archive):
        raise UsageError("Name an agent, or an archive with --archive.")

    async def read(client: GatewayClient) -> pb.ListTagsResponse:
        request = pb.ListTagsRequest(
            agent_id=await client.agent_id(agent) if agent else "",
            archive_id=await archive_id(client, archive) if archive else "",
        )
        return await client.passages.ListTags(request)

    response = connection.run(read)
    print_listing(
        response,
        ["tag", "passages"],
        [(tag.tag, str(tag.count)) for tag in response.tags],
        empty="No tags.",
        as_json=as_json,
    )


app.add_typer(archives.app, name="archives")
app.command("import")(archival_import.import_passages)
app.command("edit")(archival_life.edit)
app.command("show")(archival_life.show)
app.command("log")(archival_life.log)
app.command("restore")(archival_life.restore)
app.command("delete")(archival_life.delete)
app.command("purge")(archival_life.purge)


def _list_passages(
    connection: GatewayOptions,
    agent: str,
    request: pb.ListPassagesRequest,
    limit: int,
    *,
    as_json: bool,
) -> None:

    async def read(client: GatewayClient) -> pb.ListPassagesResponse:
        request.agent_id = await client.agent_id(agent)
        return await first_of(client.passages.ListPassages, request, "passages", limit)

    response = connection.run(read)
    print_listing(
        response,
        ["text", "tags", "when", "id", *(["deleted"] if request.show_deleted else [])],
        [
            (*_row(passage), *([when(passage.delete_time)] if request.show_deleted else []))
            for passage in response.passages
        ],
        empty="No passages.",
        as_json=as_json,
    )


def _row(passage: pb.Passage) -> tuple[str, str, str, str]:

    mark = f"[untrusted: {labels_line(passage.origin.taint)}] " if passage.origin.taint else ""
    text = mark + clipped(passage.text, _TEXT_CHARS)
    return text, ", ".join(passage.tags), when(passage.create_time), passage.id


def _hit_row(hit: pb.PassageHit, *, explain: bool) -> tuple[str, ...]:
    text, *others = _row(hit.passage)
    row = (f"{hit.relevance.rrf_score:.4f}", outdated_mark(hit) + text, *others)
    return (*row, hit.relevance.explanation) if explain else row
