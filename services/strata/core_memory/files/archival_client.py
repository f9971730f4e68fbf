"""Client of the archival service's index of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc

from strata.api.archival.v1 import file_index_service_pb2 as pb
from strata.api.archival.v1 import file_index_service_pb2_grpc as pb_grpc
from strata.core_memory.files.domain.ports import Chunk, ChunkFindings, ChunkHit, IndexProgress
from strata.protocol.errors import UnavailableError
from strata.shared.auth import TokenSigner
from strata.shared.context import Caller, RequestContext, use
from strata.shared.ids import new_id
from strata.shared.partitions import DEFAULT_PARTITION

PRINCIPAL = "core-memory-worker"
_SCOPES = frozenset({"files"})
_FILES_A_CALL = 500


class ArchivalFileIndex:
    """Calls the archival service; see `domain.ports.FileIndex`.

    Background work has no caller whose token could be forwarded. It signs tokens with a key
    of its own, which only the archival service trusts.

    Args:
        channel: The channel to the archival service.
        signer: Signs the tokens of background work; None disables it.
        partition: The partition of the projects whose files are indexed.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        signer: TokenSigner | None,
        partition: str = DEFAULT_PARTITION,
    ) -> None:
        self._stub = pb_grpc.FileIndexServiceStub(channel)
        self._signer = signer
        self._partition = partition

    async def index(
        self,
        project_id: str,
        folder_id: str,
        file_id: str,
        chunks: AsyncIterable[Sequence[Chunk]],
    ) -> int:
        """Replaces the chunks of a file in the index; returns their number."""
        with self._signed(project_id):
            call = self._stub.IndexFile()
            try:
                first = pb.IndexFileRequest(folder_id=folder_id, file_id=file_id)
                await call.write(first)
                async for batch in chunks:
                    await call.write(pb.IndexFileRequest(chunks=map(_to_proto, batch)))
                await call.done_writing()
            except asyncio.InvalidStateError:
                # The service has ended the call with an error, which is raised below.
                pass
            except BaseException:
                call.cancel()
                raise
            response = await call
        return int(response.chunk_count)

    async def progress(
        self, project_id: str, file_ids: Sequence[str]
    ) -> Mapping[str, IndexProgress]:
        """Returns the indexing progress of files; unknown files are left out."""
        by_file: dict[str, IndexProgress] = {}
        with self._signed(project_id):
            for some in _portions(file_ids):
                request = pb.GetFileProgressRequest(file_ids=some)
                for file in (await self._stub.GetFileProgress(request)).files:
                    by_file[file.file_id] = IndexProgress(file.chunk_count, file.indexed_count)
        return by_file

    async def drop(
        self, project_id: str, *, file_ids: Sequence[str] = (), folder_ids: Sequence[str] = ()
    ) -> None:
        """Removes files, or all files of folders, from the index; ignores unknown ids."""
        with self._signed(project_id):
            for files in _portions(file_ids):
                await self._stub.DropFiles(pb.DropFilesRequest(file_ids=files))
            for folders in _portions(folder_ids):
                await self._stub.DropFiles(pb.DropFilesRequest(folder_ids=folders))

    async def search(
        self, folder_ids: Sequence[str], query: str, limit: int, *, explain: bool = False
    ) -> ChunkFindings:
        """Searches chunks by meaning and words, with the identity of the current caller."""
        request = pb.SearchFileChunksRequest(
            folder_ids=folder_ids, query=query, limit=limit, explain=explain
        )
        response = await self._stub.SearchFileChunks(request)
        hits = [ChunkHit(hit.file_id, _from_proto(hit.chunk), hit.score) for hit in response.hits]
        return ChunkFindings(hits, response.below_floor)

    @contextmanager
    def _signed(self, project_id: str) -> Iterator[None]:
        if self._signer is None:
            raise UnavailableError("Semantic search of files is not set up.")
        partition = self._partition
        token = self._signer.mint("", project_id, PRINCIPAL, _SCOPES, partition=partition)
        caller = Caller("", project_id, PRINCIPAL, _SCOPES, token=token, partition=partition)
        with use(RequestContext(caller=caller, request_id=new_id("request"))):
            yield


def _portions(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[at : at + _FILES_A_CALL] for at in range(0, len(ids), _FILES_A_CALL))


def _to_proto(chunk: Chunk) -> pb.FileChunk:
    return pb.FileChunk(
        ordinal=chunk.ordinal,
        text=chunk.text,
        start_line=chunk.start_line,
        end_line=chunk.end_line,
        heading=chunk.heading,
    )


def _from_proto(chunk: pb.FileChunk) -> Chunk:
    return Chunk(chunk.ordinal, chunk.text, chunk.start_line, chunk.end_line, chunk.heading)
