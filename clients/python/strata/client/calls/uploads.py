"""Calls that send a stream: uploads of files and of passages."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self, TypeAlias, TypeVar

import grpc.aio

from strata.api.archival.v1.passage_service_pb2 import (
    NewPassage,
    UploadPassagesRequest,
    UploadPassagesResponse,
)
from strata.api.archival.v1.passage_service_pb2_grpc import PassageServiceStub
from strata.api.core_memory.v1.file_service_pb2 import (
    File,
    Folder,
    UploadFileHeader,
    UploadFileRequest,
)
from strata.api.core_memory.v1.file_service_pb2_grpc import FileServiceStub
from strata.client.calls.agents import AgentReference, agent_id_of
from strata.client.calls.arguments import id_of
from strata.client.calls.on_thread import on_calling_thread
from strata.client.services import new_request_id
from strata.client.tools import wrong_argument
from strata.protocol.errors import StrataError

RequestT = TypeVar("RequestT")

Content: TypeAlias = bytes | str | os.PathLike[str]
"""Bytes, or the path of a file."""

_CHUNK_BYTES = 1 << 20
_BATCH = 500
_BATCH_BYTES = 2 << 20


class FileUploads(FileServiceStub):
    """Uploads of files."""

    async def upload(
        self,
        folder_id: str | Folder,
        content: Content,
        *,
        name: str = "",
        media_type: str = "",
        replace: bool = False,
    ) -> File:
        """Uploads a file into a folder. It is searchable later: see `watch`.

        Args:
            folder_id: The folder.
            content: The file, or its bytes.
            name: Name in the folder; empty for the name of the file.
            media_type: MIME type; empty to guess from the name.
            replace: Replace a file of the same name.

        Raises:
            InvalidArgumentError: Bytes have no name.
            AlreadyExistsError: The folder has a file of that name (``NAME_TAKEN``).
            OSError: The file cannot be read.
        """
        if not name and isinstance(content, bytes):
            raise wrong_argument("name", "is needed for bytes")
        header = UploadFileHeader(
            request_id=new_request_id(),
            folder_id=id_of(folder_id),
            name=name or Path(os.fsdecode(content)).name,
            media_type=media_type,
            replace=replace,
        )
        with _opened(content) as source:
            requests = ObservedRequests(_file_requests(header, source))
            with requests.failures():
                file: File = (await self.UploadFile(requests)).file
        return file


class PassageUploads(PassageServiceStub):
    """Uploads of many passages."""

    channel: grpc.aio.Channel

    async def upload(
        self,
        passages: Iterable[str | NewPassage],
        *,
        agent_id: AgentReference = "",
        archive_id: str = "",
        request_id: str = "",
    ) -> UploadPassagesResponse:
        """Stores many passages by one call, and returns the counts.

        An interrupted upload continues where it stopped if the same passages are uploaded again
        with the same `request_id`.

        Args:
            passages: Texts or whole passages; read while they are sent.
            agent_id: The agent whose archive gets them; or
            archive_id: the archive.
            request_id: Idempotency key of the whole upload.

        Raises:
            NotFoundError: There is no such archive or agent.
            StrataError: The gateway refused.
        """
        first = UploadPassagesRequest(
            request_id=request_id or new_request_id(),
            agent_id=await agent_id_of(self.channel, agent_id),
            archive_id=archive_id,
        )
        # Each message waits for the response to the one before, which limits what is on the way.
        answers: asyncio.Queue[UploadPassagesResponse | None] = asyncio.Queue()

        async def batches() -> AsyncIterator[UploadPassagesRequest]:
            yield first
            if (answer := await answers.get()) is None:
                return
            skipped = answer.received_count
            if skipped:
                yield UploadPassagesRequest(skip_count=skipped)
                await answers.get()
            rest = _batches(passages, skipped)
            # The passages may be read from a call of the same client.
            while batch := await on_calling_thread(next, rest, None):
                yield UploadPassagesRequest(passages=batch)
                if await answers.get() is None:
                    return

        response = UploadPassagesResponse()
        requests = ObservedRequests(batches())
        try:
            with requests.failures():
                async for response in self.UploadPassages(requests):
                    answers.put_nowait(response)
        finally:
            # gRPC does not close the requests of a call that is over.
            answers.put_nowait(None)
        return response


class ObservedRequests(AsyncIterator[RequestT]):
    """Requests of a call, and the error that ended them.

    gRPC cancels a call whose requests fail, and does not say why.
    """

    def __init__(self, requests: AsyncIterator[RequestT]) -> None:
        self._requests = requests
        self._failure: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestT:
        try:
            return await anext(self._requests)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self._failure = error
            raise

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Raises the error of the requests instead of the call's error."""
        try:
            yield
        except (asyncio.CancelledError, StrataError):
            if self._failure is not None:
                raise self._failure from None
            raise


def _batches(passages: Iterable[str | NewPassage], skipped: int) -> Iterator[list[NewPassage]]:
    batch: list[NewPassage] = []
    size = 0
    for passage in itertools.islice(passages, skipped, None):
        whole = NewPassage(text=passage) if isinstance(passage, str) else passage
        if batch and (len(batch) == _BATCH or size + whole.ByteSize() > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(whole)
        size += whole.ByteSize()
    if batch:
        yield batch


def _opened(content: Content) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else Path(content).open("rb")


async def requests_of_caller(requests: Iterable[RequestT]) -> AsyncIterator[RequestT]:
    """Yields requests that are read on the thread of the caller; see `on_calling_thread`."""
    # A request is wrapped in a tuple, so that None is told apart from the end.
    wrapped = zip(requests)
    while read := await on_calling_thread(next, wrapped, ()):
        yield read[0]


async def _file_requests(
    header: UploadFileHeader, source: BinaryIO
) -> AsyncIterator[UploadFileRequest]:
    yield UploadFileRequest(header=header)
    while chunk := await asyncio.to_thread(source.read, _CHUNK_BYTES):
        yield UploadFileRequest(chunk=chunk)
