"""``strata recall export``, ``expand`` and ``retention``: messages kept, shown and removed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from strata.api.common.v1 import message_pb2
from strata.api.recall.v1 import message_service_pb2 as pb
from strata.cli.arguments import MAX_INT32, MAX_INT64
from strata.cli.client import GatewayClient
from strata.cli.confirmation import YesOption, confirm
from strata.cli.messages import message_row
from strata.cli.options import AgentArgument, ConversationOption, GatewayOptions, JsonOption, online
from strata.cli.output import note, print_fields, print_json, print_table, when
from strata.cli.times import timestamp_of
from strata.protocol.images import IMAGE_SUFFIXES, is_image_id
from strata.shared.one_line import escaped

_MAX_MESSAGES = 500


@online
def export_messages(
    connection: GatewayOptions,
    agent: AgentArgument,
    conversation: Annotated[
        str, typer.Option("--conversation", help="Only this conversation.")
    ] = "",
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="FOLDER", help="Write the images into this folder."),
    ] = None,
) -> None:
    """Print every message of an agent as JSON, one per line, oldest first.

    An image appears with its id, which is also the name of its file in the folder of --images.
    """

    async def read(client: GatewayClient) -> int:
        count, saved = 0, ImageFolder(client, images)
        request = pb.ExportMessagesRequest(conversation_id=conversation)
        if not conversation:
            request.agent_id = await client.agent_id(agent)
        async for response in client.messages.ExportMessages(request):
            for message in response.messages:
                line = json.dumps(MessageToDict(message), ensure_ascii=False)
                sys.stdout.write(escaped(line) + "\n")
                await saved.save(message)
            count += len(response.messages)
        return count

    count = connection.run(read)
    note(f"{count:,} messages.")


class ImageFolder:
    """Writes the images of messages to files, each one once.

    Args:
        client: The gateway.
        folder: The folder, which is created if it is missing; None to write no images.
    """

    def __init__(self, client: GatewayClient, folder: Path | None) -> None:
        self._client = client
        self._folder = folder

    async def save(self, message: message_pb2.Message) -> None:
        """Writes the images of a message."""
        if self._folder is None:
            return
        images = [part.image for part in message.parts if part.HasField("image")]
        images += [image for part in message.parts for image in part.tool_return.images]
        for image in images:
            suffix = IMAGE_SUFFIXES.get(image.media_type, "image")
            path = self._folder / f"{image.image_id}.{suffix}"
            if not is_image_id(image.image_id) or path.exists():
                continue
            request = pb.GetImageRequest(image_id=image.image_id)
            data = (await self._client.messages.GetImage(request)).data
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@online
def expand_summary(
    connection: GatewayOptions,
    agent: AgentArgument,
    conversation: ConversationOption = "",
    summary: Annotated[
        str,
        typer.Option("--summary", help="Id of a summary; the newest in the window if not given."),
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Start with the messages of that time.")
    ] = "",
    first: Annotated[
        int,
        typer.Option(
            "--from", min=0, max=MAX_INT64, help="Start with the message with this number."
        ),
    ] = 0,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, max=_MAX_MESSAGES, help="Maximum number of messages."),
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the messages behind a summary."""

    async def read(client: GatewayClient) -> pb.ExpandSummaryResponse:
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

    response = connection.run(read)
    if as_json:
        print_json(response)
        return
    if not response.HasField("summary"):
        note("There is no summary in the window.")
        return
    print_table(
        ["number", "when", "who", "text", "id"],
        [(str(message.sequence), *message_row(message)) for message in response.messages],
        empty="No messages.",
    )
    if response.next_sequence:
        note(f"There are more; continue with --from {response.next_sequence}.")


@online
def show_retention(
    connection: GatewayOptions,
    days: Annotated[
        int | None,
        typer.Option(
            "--days", min=0, max=MAX_INT32, help="Days to keep messages; 0 keeps them for ever."
        ),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show or set for how long the project keeps messages.

    Older messages are destroyed, unless they are in a window or pinned.
    """

    async def work(client: GatewayClient) -> pb.Retention:
        if days is None:
            return (await client.messages.GetRetention(pb.GetRetentionRequest())).retention
        if days:
            confirm(
                f"Delete messages of all agents of the project older than {days} days, now and in"
                " future?",
                yes=yes,
                otherwise="Deleted messages cannot be restored.",
            )
        return (await client.messages.SetRetention(pb.SetRetentionRequest(days=days))).retention

    retention = connection.run(work)
    if as_json:
        print_json(retention)
        return
    duration = f"for {retention.days} days" if retention.days else "for ever"
    print_fields([("messages are kept", duration), ("set", when(retention.update_time))])
