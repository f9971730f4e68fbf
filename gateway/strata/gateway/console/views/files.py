"""Folders and files of an agent: upload with progress, contents, attach, detach, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.gateway.console.views.agents import agent_of
from strata.gateway.console.visits import ViewRoute, Visit
from strata.shared.number_text import is_whole_number
from strata.shared.settings import KIB

_MAX_FOLDERS = 500
_MAX_FILES = 500
_CHUNK_BYTES = 512 * KIB
_SHOWN_BYTES = 256 * KIB
_STATES = {
    pb.FILE_STATE_PARSING: "being read",
    pb.FILE_STATE_INDEXING: "being indexed",
    pb.FILE_STATE_READY: "ready",
    pb.FILE_STATE_FAILED: "failed",
}
_UNDER_WAY = frozenset({pb.FILE_STATE_PARSING, pb.FILE_STATE_INDEXING})


async def files(visit: Visit) -> Response:
    """Shows the folders of an agent with their files."""
    agent = await agent_of(visit)
    attached, all_folders, listing = await asyncio.gather(
        visit.services.files.ListFolders(
            pb.ListFoldersRequest(agent_id=agent.id, page_size=_MAX_FOLDERS)
        ),
        visit.services.files.ListFolders(pb.ListFoldersRequest(page_size=_MAX_FOLDERS)),
        visit.services.files.ListFiles(
            pb.ListFilesRequest(agent_id=agent.id, page_size=_MAX_FILES)
        ),
    )
    attached_ids = {folder.id for folder in attached.folders}
    return visit.page(
        "files/list.html",
        agent=agent,
        folders=attached.folders,
        others=[folder for folder in all_folders.folders if folder.id not in attached_ids],
        files=listing.files,
        open_files={window.file_id: window for window in listing.open_files},
        state_of=state_of,
        under_way=under_way,
    )


async def new_folder(visit: Visit) -> Response:
    """Creates a folder, and attaches it to an agent."""
    agent_id, form = visit.argument("agent_id"), visit.form
    created = await visit.services.files.CreateFolder(
        pb.CreateFolderRequest(
            name=form.text("name").strip(), description=form.text("description").strip()
        )
    )
    return await _attach(visit, agent_id, created.folder.id)


async def attach(visit: Visit) -> Response:
    """Attaches a folder to an agent."""
    return await _attach(visit, visit.argument("agent_id"), visit.form.text("folder_id"))


async def detach(visit: Visit) -> Response:
    """Detaches a folder from an agent."""
    agent_id = visit.argument("agent_id")
    request = pb.DetachFolderRequest(agent_id=agent_id, folder_id=visit.form.text("folder_id"))
    await visit.services.files.DetachFolder(request)
    return visit.go_to(f"/agents/{agent_id}/files")


async def upload(visit: Visit) -> Response:
    """Stores the body of a request as a file, and shows how far it is prepared.

    The bytes are passed on as they arrive.
    """
    agent_id = visit.argument("agent_id")
    header = pb.UploadFileHeader(
        folder_id=visit.argument("folder_id"),
        name=visit.query("name"),
        replace=bool(visit.query("replace")),
    )
    response = await visit.services.files.UploadFile(_pieces(visit, header))
    return _row(visit, agent_id, response.file)


async def _pieces(visit: Visit, header: pb.UploadFileHeader) -> AsyncIterator[pb.UploadFileRequest]:
    yield pb.UploadFileRequest(header=header)
    pending = bytearray()
    async for piece in visit.request.stream():
        pending += piece
        while len(pending) >= _CHUNK_BYTES:
            yield pb.UploadFileRequest(chunk=bytes(pending[:_CHUNK_BYTES]))
            del pending[:_CHUNK_BYTES]
    if pending:
        yield pb.UploadFileRequest(chunk=bytes(pending))


async def progress(visit: Visit) -> Response:
    """Shows how far a file is prepared."""
    request = pb.GetFileRequest(file_id=visit.argument("file_id"))
    response = await visit.services.files.GetFile(request)
    return _row(visit, visit.argument("agent_id"), response.file)


async def contents(visit: Visit) -> Response:
    """Shows the text of a file, from a line on."""
    agent = await agent_of(visit)
    line = visit.query("line")
    first_line = int(line) if is_whole_number(line) and len(line) < 10 else 1
    request = pb.ReadFileRequest(
        agent_id=agent.id,
        file_id=visit.argument("file_id"),
        first_line=max(1, first_line),
        max_bytes=_SHOWN_BYTES,
    )
    text = await visit.services.files.ReadFile(request)
    return visit.page(
        "files/contents.html",
        agent=agent,
        text=text,
        first_line=max(1, first_line),
        file_id=visit.argument("file_id"),
    )


async def delete_file(visit: Visit) -> Response:
    """Deletes a file."""
    request = pb.DeleteFileRequest(file_id=visit.argument("file_id"))
    await visit.services.files.DeleteFile(request)
    return visit.go_to(f"/agents/{visit.argument('agent_id')}/files")


async def _attach(visit: Visit, agent_id: str, folder_id: str) -> Response:
    request = pb.AttachFolderRequest(agent_id=agent_id, folder_id=folder_id)
    await visit.services.files.AttachFolder(request)
    return visit.go_to(f"/agents/{agent_id}/files")


def _row(visit: Visit, agent_id: str, file: pb.File) -> Response:
    return visit.page(
        "files/row.html",
        agent_id=agent_id,
        file=file,
        open_files={},
        state_of=state_of,
        under_way=under_way,
    )


def state_of(file: pb.File) -> str:
    """Returns how far a file is prepared, in words."""
    return _STATES.get(file.state, "unknown")


def under_way(file: pb.File) -> bool:
    """Returns whether a file is still being prepared, and can still become ready."""
    return file.state in _UNDER_WAY and not file.error


VIEWS = (
    ViewRoute("/agents/{agent_id}/files", files),
    ViewRoute("/agents/{agent_id}/folders", new_folder, "POST"),
    ViewRoute("/agents/{agent_id}/folders/attach", attach, "POST"),
    ViewRoute("/agents/{agent_id}/folders/detach", detach, "POST"),
    ViewRoute("/agents/{agent_id}/folders/{folder_id}/upload", upload, "PUT"),
    ViewRoute("/agents/{agent_id}/files/{file_id}", contents),
    ViewRoute("/agents/{agent_id}/files/{file_id}/progress", progress),
    ViewRoute("/agents/{agent_id}/files/{file_id}/delete", delete_file, "POST"),
)
