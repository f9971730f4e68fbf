"""Serves the index of files to core memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

from strata.api.archival.v1 import file_index_service_pb2 as pb
from strata.api.archival.v1 import file_index_service_pb2_grpc as pb_grpc
from strata.archival.convert import files as convert
from strata.archival.domain.chunks import FileChunk, FileChunkStore
from strata.archival.search.chunk_search import FileChunkSearch
from strata.protocol.errors import StrataError, invalid_field
from strata.shared.search.embedding import Embedder

Context = Any
# Chunks, or characters, of a file that are buffered before they are stored.
_HELD_CHUNKS = 500
_HELD_CHARS = 1_000_000


class FileIndexServicer(pb_grpc.FileIndexServiceServicer):
    """Stores and searches chunks of files.

    Args:
        store: Stores the chunks.
        search: Searches them.
        embedder: Counts tokens.
        token_limit: Maximum of tokens in one chunk.
        wake: Wakes the indexer after a commit.
    """

    def __init__(
        self,
        store: FileChunkStore,
        search: FileChunkSearch,
        embedder: Embedder,
        *,
        token_limit: int,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._search = search
        self._embedder = embedder
        self._token_limit = token_limit
        self._wake = wake

    async def IndexFile(
        self, request_iterator: AsyncIterator[pb.IndexFileRequest], context: Context
    ) -> pb.IndexFileResponse:
        """Stores the chunks of a file, which replace its old ones atomically."""
        upload = _FileUpload(self._store, self._embedder, self._token_limit)
        count = await upload.receive(request_iterator)
        self._wake()
        return pb.IndexFileResponse(chunk_count=count)

    async def GetFileProgress(
        self, request: pb.GetFileProgressRequest, context: Context
    ) -> pb.GetFileProgressResponse:
        """Returns how many chunks of files are indexed."""
        progress = await self._store.progress(convert.check_ids(request.file_ids, "file"))
        return pb.GetFileProgressResponse(
            files=[convert.progress_to_proto(file_progress) for file_progress in progress]
        )

    async def DropFiles(
        self, request: pb.DropFilesRequest, context: Context
    ) -> pb.DropFilesResponse:
        """Removes files and folders from the index."""
        deleted = await self._store.drop(
            convert.check_ids(request.file_ids, "file", maximum=None),
            convert.check_ids(request.folder_ids, "folder", maximum=None),
        )
        self._wake()
        return pb.DropFilesResponse(deleted_chunks=deleted)

    async def SearchFileChunks(
        self, request: pb.SearchFileChunksRequest, context: Context
    ) -> pb.SearchFileChunksResponse:
        """Searches chunks by meaning and words."""
        folders, query, limit = convert.to_search(request)
        result = await self._search.search(folders, query, limit, explain=request.explain)
        return pb.SearchFileChunksResponse(
            hits=[convert.hit_to_proto(item) for item in result.hits],
            below_floor=result.below_floor,
        )


class _FileUpload:
    """Receives the chunks of one file; they are invisible until all are stored."""

    def __init__(self, store: FileChunkStore, embedder: Embedder, token_limit: int) -> None:
        self._store = store
        self._embedder = embedder
        self._token_limit = token_limit
        self._source = ("", "")
        self._set_id = ""
        self._count = 0
        self._digest = sha256()
        self._held: list[FileChunk] = []
        self._held_chars = 0

    async def receive(self, messages: AsyncIterator[pb.IndexFileRequest]) -> int:
        """Stores the chunks of the stream; returns their number.

        Raises:
            InvalidArgumentError: The stream is empty, or a message is invalid.
            FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
            AbortedError: ``EDIT_CONFLICT``: the file was dropped meanwhile.
        """
        try:
            async for message in messages:
                await self._take(message)
            self._check_begun()
            await self._store_held()
            await self._store.serve(self._set_id, self._count, self._digest.hexdigest())
        except BaseException:
            # If this fails too, the indexer drops the set after a while.
            if self._set_id:
                with contextlib.suppress(StrataError):
                    await self._store.discard(self._set_id)
            raise
        return self._count

    async def _take(self, message: pb.IndexFileRequest) -> None:
        if not self._set_id:
            self._source = convert.check_source(message.folder_id, message.file_id)
            self._set_id = await self._store.begin(*self._source)
        self._check_source(message)
        # In a thread, since counting the tokens of long chunks would block the event loop.
        chunks = await asyncio.to_thread(
            convert.to_chunks,
            message.chunks,
            self._count,
            self._embedder.limit_tokens,
            self._token_limit,
        )
        self._count += len(chunks)
        for chunk in chunks:
            self._note(chunk)
            if len(self._held) >= _HELD_CHUNKS or self._held_chars >= _HELD_CHARS:
                await self._store_held()

    def _check_begun(self) -> None:
        if not self._set_id:
            raise invalid_field("file_id", "must be sent in the first message")

    def _check_source(self, message: pb.IndexFileRequest) -> None:
        folder_id, file_id = self._source
        if message.folder_id not in {"", folder_id} or message.file_id not in {"", file_id}:
            raise invalid_field("file_id", "must be empty or the same as in the first message")

    def _note(self, chunk: FileChunk) -> None:
        head = f"{chunk.start_line},{chunk.end_line},{len(chunk.text)},{len(chunk.heading)}\0"
        self._digest.update((head + chunk.text + chunk.heading).encode())
        self._held.append(chunk)
        self._held_chars += len(chunk.text)

    async def _store_held(self) -> None:
        chunks, self._held, self._held_chars = self._held, [], 0
        if chunks:
            await self._store.add(self._set_id, chunks)
