"""The gRPC servicer of `FileService`: converts requests, calls the domain, converts results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from strata.api.core_memory.v1 import file_service_pb2 as pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as pb_grpc
from strata.core_memory.domain.blocks import agent_not_found
from strata.core_memory.domain.core_memory import Receipt
from strata.core_memory.domain.ports import ReplayedError
from strata.core_memory.files import convert
from strata.core_memory.files.domain.file_windows import OpenFilesResult
from strata.core_memory.files.domain.files import (
    PART_BYTES,
    File,
    Folder,
    file_not_found,
    folder_not_found,
)
from strata.core_memory.files.domain.lines import LineReader
from strata.core_memory.files.domain.ports import FileStore, FolderStore
from strata.core_memory.files.file_watch import watch
from strata.core_memory.files.file_windows import Windows
from strata.core_memory.files.grep import Grep
from strata.core_memory.files.search import FileSearch
from strata.core_memory.files.uploads import Uploads
from strata.protocol.errors import StrataError, invalid_field
from strata.shared.db import Page, decode_page_token, page_limit

Context = Any
MAX_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class FileParts:
    """The parts that the servicer uses.

    Attributes:
        folders: Stores folders.
        files: Stores files.
        uploads: Receives uploads.
        windows: Opens and closes files.
        grep: Searches by pattern.
        search: Searches by meaning.
        lines: Reads lines.
        knows_agent: Returns whether there is an agent.
        deleted: Called after a deletion.
    """

    folders: FolderStore
    files: FileStore
    uploads: Uploads
    windows: Windows
    grep: Grep
    search: FileSearch
    lines: LineReader
    knows_agent: Callable[[str], Awaitable[bool]]
    deleted: Callable[[], None]


class FileServicer(pb_grpc.FileServiceServicer):
    """Serves folders, files, windows and searches."""

    def __init__(self, parts: FileParts) -> None:
        self._folders = parts.folders
        self._files = parts.files
        self._uploads = parts.uploads
        self._windows = parts.windows
        self._grep = parts.grep
        self._search = parts.search
        self._lines = parts.lines
        self._knows_agent = parts.knows_agent
        self._deleted = parts.deleted

    async def CreateFolder(
        self, request: pb.CreateFolderRequest, context: Context
    ) -> pb.CreateFolderResponse:
        """Creates a folder."""
        folder = convert.to_new_folder(request)
        receipt: Receipt[Folder] = Receipt(
            convert.to_request("CreateFolder", request.request_id, request),
            lambda made: _created(made).SerializeToString(),
        )
        try:
            return _created(await self._folders.create(receipt, folder))
        except ReplayedError as replayed:
            return pb.CreateFolderResponse.FromString(replayed.response)

    async def ListFolders(
        self, request: pb.ListFoldersRequest, context: Context
    ) -> pb.ListFoldersResponse:
        """Lists folders of the project or of an agent."""
        agent_id = convert.to_agent_id(request.agent_id, optional=True)
        scope = f"ListFolders {agent_id}"
        count = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        (after,) = decode_page_token(scope, request.page_token, [str]) or ("",)
        if agent_id:
            rows = await self._folders.of_agent(agent_id, str(after), count + 1)
            if not rows and not request.page_token:
                await self._check_agent(agent_id)
        else:
            rows = await self._folders.of_project(str(after), count + 1)
        page = Page.cut(rows, count, scope, lambda folder: [folder.name])
        return pb.ListFoldersResponse(
            folders=[convert.folder_to_proto(folder) for folder in page.rows],
            next_page_token=page.next_page_token,
        )

    async def DeleteFolder(
        self, request: pb.DeleteFolderRequest, context: Context
    ) -> pb.DeleteFolderResponse:
        """Deletes a folder with its files."""
        await self._folders.delete(convert.to_folder_id(request.folder_id))
        self._deleted()
        return pb.DeleteFolderResponse()

    async def UploadFile(
        self, request_iterator: AsyncIterator[pb.UploadFileRequest], context: Context
    ) -> pb.UploadFileResponse:
        """Stores a file."""
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("payload") != "header":
            raise invalid_field("header", "must be the first message")
        message = first.header

        def receipt(content: str) -> Receipt[File]:
            request = convert.to_request("UploadFile", message.request_id, message, content)
            return Receipt(request, lambda made: _uploaded(made).SerializeToString())

        try:
            header = convert.to_header(message)
            return _uploaded(await self._uploads.receive(header, _chunks(requests), receipt))
        except ReplayedError as replayed:
            return pb.UploadFileResponse.FromString(replayed.response)
        except StrataError:
            await _drain(requests, self._uploads.limit)
            raise

    async def GetFile(self, request: pb.GetFileRequest, context: Context) -> pb.GetFileResponse:
        """Returns a file."""
        file_id = convert.to_file_id(request.file_id)
        file = await self._files.get(file_id)
        if file is None:
            raise file_not_found(file_id)
        return pb.GetFileResponse(file=convert.file_to_proto(file))

    async def WatchFile(
        self, request: pb.WatchFileRequest, context: Context
    ) -> AsyncIterator[pb.WatchFileResponse]:
        """Streams a file whenever it changes, until it is ready or has failed."""
        async for file in watch(self._files, convert.to_file_id(request.file_id)):
            yield pb.WatchFileResponse(file=convert.file_to_proto(file))

    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        """Lists files of a folder or of an agent."""
        folder_id, agent_id = convert.to_listed(request)
        scope = f"ListFiles {folder_id} {agent_id}"
        count = page_limit(request.page_size, maximum=MAX_PAGE_SIZE)
        folder, name = decode_page_token(scope, request.page_token, [str, str]) or ("", "")
        if agent_id:
            after = (str(folder), str(name))
            rows = await self._files.of_agent(agent_id, after, count + 1)
            windows = await self._files.open_of_agent(agent_id)
            if not rows and not request.page_token:
                await self._check_agent(agent_id)
        else:
            rows = await self._files.of_folder(folder_id, str(name), count + 1)
            windows = []
            if not (rows or request.page_token or await self._folders.get(folder_id)):
                raise folder_not_found(folder_id)
        page = Page.cut(rows, count, scope, lambda file: [file.folder_name, file.name])
        return pb.ListFilesResponse(
            files=[convert.file_to_proto(file) for file in page.rows],
            open_files=[convert.open_file_to_proto(window) for window in windows],
            next_page_token=page.next_page_token,
        )

    async def DeleteFile(
        self, request: pb.DeleteFileRequest, context: Context
    ) -> pb.DeleteFileResponse:
        """Deletes a file."""
        await self._files.delete(convert.to_file_id(request.file_id))
        self._deleted()
        return pb.DeleteFileResponse()

    async def AttachFolder(
        self, request: pb.AttachFolderRequest, context: Context
    ) -> pb.AttachFolderResponse:
        """Attaches a folder to an agent, and opens its first files if requested."""
        agent_id, folder_id = convert.to_pair(request)
        folder = await self._folders.attach(agent_id, folder_id)
        if request.open_count:
            await self._windows.open_first(agent_id, folder_id, request.open_count)
        return pb.AttachFolderResponse(folder=convert.folder_to_proto(folder))

    async def DetachFolder(
        self, request: pb.DetachFolderRequest, context: Context
    ) -> pb.DetachFolderResponse:
        """Detaches a folder from an agent."""
        await self._folders.detach(*convert.to_pair(request))
        return pb.DetachFolderResponse()

    async def OpenFiles(
        self, request: pb.OpenFilesRequest, context: Context
    ) -> pb.OpenFilesResponse:
        """Opens windows."""
        receipt: Receipt[OpenFilesResult] = Receipt(
            convert.to_request("OpenFiles", request.request_id, request),
            lambda opened: convert.opened_to_proto(opened).SerializeToString(),
        )
        try:
            opened = await self._windows.open(convert.to_open(request), receipt)
        except ReplayedError as replayed:
            return pb.OpenFilesResponse.FromString(replayed.response)
        return convert.opened_to_proto(opened)

    async def CloseFiles(
        self, request: pb.CloseFilesRequest, context: Context
    ) -> pb.CloseFilesResponse:
        """Closes windows."""
        opened = await self._windows.close(*convert.to_close(request))
        windows = [convert.open_file_to_proto(window) for window in opened.windows]
        return pb.CloseFilesResponse(open_files=windows)

    async def GrepFiles(
        self, request: pb.GrepFilesRequest, context: Context
    ) -> pb.GrepFilesResponse:
        """Searches by pattern."""
        query = convert.to_grep(request)
        page = await self._grep.search(query)
        if not page.matches:
            await self._check_agent(query.agent_id)
        return convert.grep_to_proto(page)

    async def ReadFile(self, request: pb.ReadFileRequest, context: Context) -> pb.ReadFileResponse:
        """Returns lines of a file of an agent."""
        result = await self._lines.read(convert.to_read(request))
        return pb.ReadFileResponse(
            file_name=result.file.name,
            lines=result.lines,
            left_out_chars=result.left_out_chars,
            line_count=result.file.line_count,
        )

    async def SearchFiles(
        self, request: pb.SearchFilesRequest, context: Context
    ) -> pb.SearchFilesResponse:
        """Searches by meaning."""
        query = convert.to_search(request)
        findings = await self._search.search(query)
        if not findings.hits:
            await self._check_agent(query.agent_id)
        return convert.search_to_proto(findings)

    async def _check_agent(self, agent_id: str) -> None:
        if not await self._knows_agent(agent_id):
            raise agent_not_found(agent_id)


async def _chunks(requests: AsyncIterator[pb.UploadFileRequest]) -> AsyncIterator[bytes]:
    """Yields the bytes after the header."""
    async for request in requests:
        if request.WhichOneof("payload") != "chunk":
            raise invalid_field("chunk", "must be set in every message after the header")
        if len(request.chunk) > PART_BYTES:
            raise invalid_field("chunk", f"holds {len(request.chunk)} bytes, at most {PART_BYTES}")
        yield request.chunk


async def _drain(requests: AsyncIterator[pb.UploadFileRequest], limit: int) -> None:
    """Reads and discards the rest of an upload, up to a limit.

    A client of grpc.aio (1.85) that is still sending when the call ends reports an internal
    error instead of the status, so its user would not see what was wrong.
    """
    async for request in requests:
        limit -= request.ByteSize()
        if limit < 0:
            return


def _created(folder: Folder) -> pb.CreateFolderResponse:
    return pb.CreateFolderResponse(folder=convert.folder_to_proto(folder))


def _uploaded(file: File) -> pb.UploadFileResponse:
    return pb.UploadFileResponse(file=convert.file_to_proto(file))
