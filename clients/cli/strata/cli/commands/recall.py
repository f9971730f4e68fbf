"""``strata recall``: lists, searches and pins messages."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.common.v1 import message_pb2
from strata.api.recall.v1 import message_service_pb2 as pb
from strata.cli.client import GatewayClient, first_of
from strata.cli.commands.recall_keep import expand_summary, export_messages, show_retention
from strata.cli.messages import message_row, speaker_of, text_of
from strata.cli.options import (
    AgentArgument,
    ConversationOption,
    GatewayOptions,
    JsonOption,
    LimitOption,
    QueryArgument,
    online,
)
from strata.cli.output import (
    labels_line,
    print_fields,
    print_json,
    print_listing,
    print_table,
    print_text,
    safe,
    when,
)
from strata.cli.search_notes import outdated_mark, print_search_notes
from strata.shared.one_line import clipped

app = typer.Typer(
    help="List, search, pin, expand and export messages.",
    no_args_is_help=True,
    add_completion=False,
)

_MAX_HITS = 100
_MAX_NEIGHBOURS = 5
_TEXT_CHARS = 60

MessageArgument = Annotated[str, typer.Argument(metavar="MESSAGE", help="Id of the message.")]


@app.command("search")
@online
def search_messages(
    connection: GatewayOptions,
    agent: AgentArgument,
    query: QueryArgument,
    conversation: Annotated[
        str, typer.Option("--conversation", help="Only this conversation.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MAX_HITS, help="Maximum number of messages.")
    ] = 10,
    neighbours: Annotated[
        int,
        typer.Option(
            "--neighbours",
            "-C",
            min=0,
            max=_MAX_NEIGHBOURS,
            help="Messages to show before and after each match.",
        ),
    ] = 0,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show why each message matches, and what filters excluded."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Search the messages of an agent in all its conversations, best first."""

    async def search(client: GatewayClient) -> pb.SearchMessagesResponse:
        request = pb.SearchMessagesRequest(
            agent_id=await client.agent_id(agent),
            conversation_id=conversation,
            query=query,
            limit=limit,
            neighbours=neighbours,
            explain=explain,
        )
        return await client.messages.SearchMessages(request)

    response = connection.run(search)
    if as_json:
        print_json(response)
        return
    columns = ["when", "who", "text", "id"]
    rows = [row for hit in response.hits for row in _hit_rows(hit, explain=explain)]
    print_table([*columns, "why"] if explain else columns, rows, empty="Nothing found.")
    if explain:
        print_search_notes(response)


@app.command("list")
@online
def list_messages(
    connection: GatewayOptions,
    agent: AgentArgument,
    conversation: ConversationOption = "",
    limit: LimitOption = 20,
    oldest: Annotated[
        bool, typer.Option("--oldest", help="The first messages instead of the last.")
    ] = False,
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Only pinned ones, of all conversations.")
    ] = False,
    calls: Annotated[
        bool,
        typer.Option("--calls", help="Show send_message as calls, not as the agent's text."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the last messages of a conversation, oldest first."""

    async def read(client: GatewayClient) -> pb.ListMessagesResponse:
        order = pb.LIST_ORDER_OLDEST_FIRST if oldest else pb.LIST_ORDER_NEWEST_FIRST
        request = pb.ListMessagesRequest(
            order=order, pinned_only=pinned, send_message_as_text=not calls
        )
        if pinned and not conversation:
            request.agent_id = await client.agent_id(agent)
        else:
            chosen = conversation or (await client.agent(agent)).default_conversation_id
            request.conversation_id = chosen
        return await first_of(client.messages.ListMessages, request, "messages", limit)

    listing = connection.run(read)
    messages = list(listing.messages) if oldest else list(reversed(listing.messages))
    print_listing(
        listing,
        ["when", "who", "text", "id"],
        [message_row(message) for message in messages],
        empty="No messages.",
        as_json=as_json,
    )


@app.command("show")
@online
def show_message(
    connection: GatewayOptions, message: MessageArgument, as_json: JsonOption = False
) -> None:
    """Show a whole message."""

    async def read(client: GatewayClient) -> message_pb2.Message:
        request = pb.GetMessageRequest(message_id=message)
        return (await client.messages.GetMessage(request)).message

    stored_message = connection.run(read)
    if as_json:
        print_json(stored_message)
        return
    print_fields(
        [
            ("id", stored_message.id),
            ("when", when(stored_message.create_time)),
            ("who", speaker_of(stored_message)),
            ("conversation", stored_message.conversation_id),
            ("run", stored_message.run_id),
            ("untrusted", labels_line(stored_message.provenance)),
        ]
    )
    print_text(f"\n{safe(text_of(stored_message))}")


@app.command("pin")
@online
def pin_message(
    connection: GatewayOptions, message: MessageArgument, as_json: JsonOption = False
) -> None:
    """Keep a message in the window through every compaction."""

    async def pin(client: GatewayClient) -> message_pb2.Message:
        request = pb.PinMessageRequest(message_id=message)
        return (await client.messages.PinMessage(request)).message

    _print_result("Pinned", connection.run(pin), as_json=as_json)


@app.command("unpin")
@online
def unpin_message(
    connection: GatewayOptions, message: MessageArgument, as_json: JsonOption = False
) -> None:
    """Let compaction remove a message from the window again."""

    async def unpin(client: GatewayClient) -> message_pb2.Message:
        request = pb.UnpinMessageRequest(message_id=message)
        return (await client.messages.UnpinMessage(request)).message

    _print_result("No longer pinned", connection.run(unpin), as_json=as_json)


app.command("expand")(expand_summary)
app.command("export")(export_messages)
app.command("retention")(show_retention)


def _print_result(what: str, message: message_pb2.Message, *, as_json: bool) -> None:
    if as_json:
        print_json(message)
    else:
        typer.echo(safe(f"{what}: {clipped(text_of(message), _TEXT_CHARS)}"))


def _hit_rows(hit: pb.MessageHit, *, explain: bool) -> list[tuple[str, ...]]:
    """Returns the rows of a hit and its neighbours, in order; neighbours are indented."""
    around = [(neighbour.sequence, neighbour, False) for neighbour in hit.neighbours]
    rows: list[tuple[str, ...]] = []
    for _, message, is_hit in sorted(
        [*around, (hit.message.sequence, hit.message, True)], key=lambda entry: entry[0]
    ):
        time, who, text, message_id = message_row(message)
        marked_text = outdated_mark(hit) + text if is_hit else f"| {text}"
        row = (time, who, marked_text, message_id)
        rows.append((*row, hit.relevance.explanation if is_hit else "") if explain else row)
    return rows
