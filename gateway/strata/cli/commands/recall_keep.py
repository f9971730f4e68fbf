"""``strata recall export``, ``expand`` and ``retention``: the log whole, and for how long."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from strata.api.recall.v1 import message_service_pb2 as pb
from strata.cli.asking import YesOption, ask
from strata.cli.client import Client
from strata.cli.messages import message_row
from strata.cli.options import AgentArgument, Connection, ConversationOption, JsonOption, online
from strata.cli.output import note, print_fields, print_json, print_table, when
from strata.cli.times import timestamp_of

_PAGE = 500


@online
def export_messages(
    connection: Connection,
    agent: AgentArgument,
    conversation: Annotated[
        str, typer.Option("--conversation", help="Only this conversation.")
    ] = "",
) -> None:
    """Print every message of an agent, one JSON document a line, oldest first."""

    async def read(client: Client) -> int:
        count = 0
        request = pb.ExportMessagesRequest(conversation_id=conversation)
        if not conversation:
            request.agent_id = await client.agent_id(agent)
        async for response in client.messages.ExportMessages(request):
            for message in response.messages:
                sys.stdout.write(json.dumps(MessageToDict(message), ensure_ascii=False) + "\n")
            count += len(response.messages)
        return count

    count = connection.run(read)
    note(f"{count:,} messages.")


@online
def expand_summary(
    connection: Connection,
    agent: AgentArgument,
    conversation: ConversationOption = "",
    summary: Annotated[
        str,
        typer.Option("--summary", help="Id of a summary; the newest in the window if not given."),
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Start with what was said then.")
    ] = "",
    first: Annotated[
        int, typer.Option("--from", min=0, help="Start with the message of this number.")
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_PAGE, help="How many at most.")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the messages that a summary stands for."""

    async def read(client: Client) -> pb.ExpandSummaryResponse:
        request = pb.ExpandSummaryRequest(
            summary_message_id=summary,
            from_sequence=first,
            start_time=timestamp_of(since),
            page_size=limit,
        )
        if not summary:
            chosen = conversation or (await client.agent(agent)).default_conversation_id
            request.conversation_id = chosen
        return await client.messages.ExpandSummary(request)

    found = connection.run(read)
    if as_json:
        print_json(found)
        return
    if not found.HasField("summary"):
        note("There is no summary in the window.")
        return
    print_table(
        ["number", "when", "who", "text", "id"],
        [(str(each.sequence), *message_row(each)) for each in found.messages],
        empty="No messages.",
    )
    if found.next_sequence:
        note(f"There are more; go on with --from {found.next_sequence}.")


@online
def show_retention(
    connection: Connection,
    days: Annotated[
        int | None,
        typer.Option("--days", min=0, help="Keep messages so long; 0 keeps them for ever."),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show or set for how long the project keeps messages.

    Older messages are deleted for good, unless they are in a window or pinned.
    """

    async def work(client: Client) -> pb.Retention:
        if days is None:
            return (await client.messages.GetRetention(pb.GetRetentionRequest())).retention
        if days:
            ask(
                f"Delete what any agent of the project was told more than {days} days ago,"
                " now and from now on?",
                yes=yes,
                otherwise="What is forgotten cannot be brought back.",
            )
        return (await client.messages.SetRetention(pb.SetRetentionRequest(days=days))).retention

    kept = connection.run(work)
    if as_json:
        print_json(kept)
        return
    told = f"for {kept.days} days" if kept.days else "for ever"
    print_fields([("messages are kept", told), ("set", when(kept.update_time))])
