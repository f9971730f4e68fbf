"""Finds folders and files by name or id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import typer

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.cli.client import GatewayClient, item_named
from strata.cli.failures import UsageError
from strata.client.calls.pages import pages
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.ids import is_id

_PAGE_SIZE = 500

FolderArgument = Annotated[str, typer.Argument(metavar="FOLDER", help="Name or id of the folder.")]


async def folder_named(client: GatewayClient, name_or_id: str) -> pb.Folder:
    """Returns a folder by name or by id.

    Raises:
        NotFoundError: There is none (``FILE_NOT_FOUND``).
    """
    folder: pb.Folder = await item_named(
        client.files.ListFolders,
        pb.ListFoldersRequest(),
        "folders",
        name_or_id,
        kind="folder",
        command="strata folders list",
        reason=Reason.FILE_NOT_FOUND,
    )
    return folder


async def file_named(client: GatewayClient, name_or_id: str) -> pb.File:
    """Returns a file by ``FOLDER/NAME`` or by id.

    Raises:
        NotFoundError: There is none (``FILE_NOT_FOUND``).
        UsageError: The text has neither form.
    """
    if is_id(name_or_id, "file"):
        return (await client.files.GetFile(pb.GetFileRequest(file_id=name_or_id))).file
    folder_name, slash, name = name_or_id.partition("/")
    if not slash:
        raise UsageError(f'Write "{name_or_id}" as FOLDER/FILE, or give an id.')
    folder = await folder_named(client, folder_name)
    async for file in files_in(client, folder.id):
        if file.name == name:
            return file
    raise NotFoundError(
        f'There is no file "{name}" in {folder.name}. List them with: strata files list '
        f"{folder.name}",
        reason=Reason.FILE_NOT_FOUND,
    )


async def files_in(client: GatewayClient, folder_id: str) -> AsyncIterator[pb.File]:
    """Yields the files of a folder."""
    request = pb.ListFilesRequest(folder_id=folder_id, page_size=_PAGE_SIZE)
    async for page in pages(client.files.ListFiles, request):
        for file in page.files:
            yield file
