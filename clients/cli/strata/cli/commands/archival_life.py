"""``strata archival show``, ``edit``, ``log``, ``restore``, ``delete`` and ``purge``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata.api.archival.v1 import passage_service_pb2 as pb
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import UsageError
from strata.cli.options import GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import (
    labels_line,
    print_fields,
    print_json,
    print_listing,
    print_text,
    safe,
    when,
)
from strata.shared.one_line import clipped

_TEXT_CHARS = 160

PassageArgument = Annotated[str, typer.Argument(metavar="PASSAGE", help="Id of the passage.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="Reason; stored in the history.", show_default=False)
]


@online
def show(connection: GatewayOptions, passage: PassageArgument, as_json: JsonOption = False) -> None:
    """Show a whole passage, even a deleted one."""

    async def read(client: GatewayClient) -> pb.Passage:
        request = pb.GetPassageRequest(passage_id=passage, show_deleted=True)
        return (await client.passages.GetPassage(request)).passage

    read_passage = connection.run(read)
    if as_json:
        print_json(read_passage)
        return
    print_fields(
        [
            ("id", read_passage.id),
            ("archive", read_passage.archive_id),
            ("tags", ", ".join(read_passage.tags)),
            ("revision", str(read_passage.revision)),
            ("created", when(read_passage.create_time)),
            (
                "deleted",
                when(read_passage.delete_time) if read_passage.HasField("delete_time") else "",
            ),
            ("untrusted", labels_line(read_passage.origin.taint)),
        ]
    )
    print_text(f"\n{safe(read_passage.text)}")


@online
def log(
    connection: GatewayOptions,
    passage: PassageArgument,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the versions of a passage, also of a deleted one, newest first."""

    async def read(client: GatewayClient) -> pb.ListPassageVersionsResponse:
        request = pb.ListPassageVersionsRequest(passage_id=passage)
        return await first_of(client.passages.ListPassageVersions, request, "versions", limit)

    listing = connection.run(read)
    print_listing(
        listing,
        ["revision", "what", "when", "by", "why", "tags", "text", "untrusted"],
        [_row(version) for version in listing.versions],
        empty="No versions.",
        as_json=as_json,
    )


@online
def edit(
    connection: GatewayOptions,
    passage: PassageArgument,
    text: Annotated[
        str | None, typer.Option("--text", help='The new text; "-" reads the input.')
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Tags that replace the present ones; may be repeated."),
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove all tags.")] = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change the text or the tags of a passage; the older version is kept."""
    if tag and no_tags:
        raise UsageError("Give --tag or --no-tags, not both.")
    if text is None and not tag and not no_tags:
        raise UsageError("Nothing to change: give --text, --tag or --no-tags.")
    request = pb.UpdatePassageRequest(
        request_id=new_request_id(),
        passage_id=passage,
        text=sys.stdin.read() if text == "-" else text,
        tags=tag or [],
        set_tags=bool(tag) or no_tags,
        reason=reason,
    )

    async def update(client: GatewayClient) -> pb.Passage:
        return (await client.passages.UpdatePassage(request)).passage

    updated = connection.run(update)
    if as_json:
        print_json(updated)
    else:
        typer.echo(f"Revision {updated.revision}: {safe(clipped(updated.text, _TEXT_CHARS))}")


@online
def restore(
    connection: GatewayOptions,
    passage: PassageArgument,
    revision: Annotated[
        int,
        typer.Argument(
            metavar="REVISION",
            min=0,
            help="The version to restore; default: undo the deletion.",
            show_default=False,
        ),
    ] = 0,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Bring back a deleted passage, or an older version of one."""
    request = pb.RestorePassageRequest(
        request_id=new_request_id(), passage_id=passage, revision=revision, reason=reason
    )

    async def work(client: GatewayClient) -> pb.RestorePassageResponse:
        return await client.passages.RestorePassage(request)

    response = connection.run(work)
    if as_json:
        print_json(response)
    else:
        text = clipped(response.passage.text, _TEXT_CHARS)
        typer.echo(f"Revision {response.passage.revision}: {safe(text)}")


@online
def delete(connection: GatewayOptions, passage: PassageArgument, reason: ReasonOption = "") -> None:
    """Hide a passage; ``restore`` brings it back."""

    async def work(client: GatewayClient) -> None:
        await client.passages.DeletePassage(
            pb.DeletePassageRequest(passage_id=passage, reason=reason)
        )

    connection.run(work)
    typer.echo(f"Deleted. To bring it back: strata archival restore {passage}")


@online
def purge(connection: GatewayOptions, passage: PassageArgument, yes: YesOption = False) -> None:
    """Destroy a passage with all its versions."""
    confirm(f"Destroy {passage}?", yes=yes, otherwise="Destroying cannot be undone.")

    async def work(client: GatewayClient) -> pb.PurgePassageResponse:
        request = pb.PurgePassageRequest(request_id=new_request_id(), passage_id=passage)
        return await client.passages.PurgePassage(request)

    response = connection.run(work)
    count = response.purged_versions
    typer.echo(f"Destroyed {count:,} version{'' if count == 1 else 's'}.")


def _row(version: pb.PassageVersion) -> tuple[str, ...]:
    by = version.origin.agent_id or version.principal
    return (
        str(version.revision),
        version.operation,
        when(version.create_time),
        by,
        version.reason,
        ", ".join(version.tags),
        clipped(version.text, _TEXT_CHARS),
        labels_line(version.origin.taint),
    )
