"""Finds archives by name or id."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.archival.v1 import archive_service_pb2 as pb
from strata.cli.client import GatewayClient, item_named
from strata.protocol.errors import Reason
from strata.shared.ids import is_id

ArchiveArgument = Annotated[
    str, typer.Argument(metavar="ARCHIVE", help="Name or id of the archive.")
]


async def archive_named(client: GatewayClient, name_or_id: str) -> pb.Archive:
    """Returns an archive by name or by id.

    Raises:
        NotFoundError: There is none (``ARCHIVE_NOT_FOUND``).
    """
    if is_id(name_or_id, "archive"):
        request = pb.GetArchiveRequest(archive_id=name_or_id)
        return (await client.archives.GetArchive(request)).archive
    archive: pb.Archive = await item_named(
        client.archives.ListArchives,
        pb.ListArchivesRequest(),
        "archives",
        name_or_id,
        kind="archive",
        command="strata archival archives list",
        reason=Reason.ARCHIVE_NOT_FOUND,
    )
    return archive


async def archive_id(client: GatewayClient, name_or_id: str) -> str:
    """Returns the id of an archive; an id is not looked up.

    Raises:
        NotFoundError: There is no archive of that name (``ARCHIVE_NOT_FOUND``).
    """
    if is_id(name_or_id, "archive"):
        return name_or_id
    return (await archive_named(client, name_or_id)).id
