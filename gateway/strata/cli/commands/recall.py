"""``strata recall``."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.common.v1 import message_pb2
from strata.api.recall.v1 import message_service_pb2 as pb
from strata.cli.client import Client, first_of
from strata.cli.messages import speaker_of, text_of
from strata.cli.options import (
    AgentArgument,
    Connection,
    ConversationOption,
    JsonOption,
    LimitOption,
    online,
)
from strata.cli.output import clipped, print_listing, when

app = typer.Typer(help="List and search what was said.", no_args_is_help=True, add_completion=False)

_TEXT_CHARS = 160
_MOST_HITS = 100


@app.command("search")
@online
def search_messages(
    connection: Connection,
    agent: AgentArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words or a question.")],
    conversation: Annotated[
        str, typer.Option("--conversation", help="Only this conversation.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MOST_HITS, help="How many at most.")
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """Search the messages of an agent, best first."""

    async def search(client: Client) -> pb.SearchMessagesResponse:
        request = pb.SearchMessagesRequest(
            agent_id=await client.agent_id(agent),
            conversation_id=conversation,
            query=query,
            limit=limit,
        )
        return await client.messages.SearchMessages(request)

    found = connection.run(search)
    print_listing(
        found,
        ["when", "who", "text", "id"],
        [_row(hit.message) for hit in found.hits],
        empty="Nothing found.",
        as_json=as_json,
    )


@app.command("list")
@online
def list_messages(
    connection: Connection,
    agent: AgentArgument,
    conversation: ConversationOption = "",
    limit: LimitOption = 20,
    oldest: Annotated[
        bool, typer.Option("--oldest", help="The first messages instead of the last.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the messages of a conversation: the last ones, in the order in which they came."""

    async def read(client: Client) -> pb.ListMessagesResponse:
        chosen = conversation or (await client.agent(agent)).default_conversation_id
        order = pb.LIST_ORDER_OLDEST_FIRST if oldest else pb.LIST_ORDER_NEWEST_FIRST
        request = pb.ListMessagesRequest(conversation_id=chosen, order=order)
        return await first_of(client.messages.ListMessages, request, "messages", limit)

    found = connection.run(read)
    messages = list(found.messages) if oldest else list(reversed(found.messages))
    print_listing(
        found,
        ["when", "who", "text", "id"],
        [_row(message) for message in messages],
        empty="No messages.",
        as_json=as_json,
    )


def _row(message: message_pb2.Message) -> tuple[str, str, str, str]:

    text = clipped(text_of(message), _TEXT_CHARS)
    return when(message.create_time), speaker_of(message), text, message.id
