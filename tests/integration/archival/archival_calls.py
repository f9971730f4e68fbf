"""Calls of the archival service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from integration.archival.conftest import Client
from passage_uploads import new_passages, upload_passages
from strata.api.archival.v1 import archive_service_pb2 as archive_pb
from strata.api.archival.v1 import file_index_service_pb2 as pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.shared.ids import new_id


def chunks(*texts: str, first: int = 0) -> list[pb.FileChunk]:
    return [
        pb.FileChunk(ordinal=n, text=text, start_line=n + 1, end_line=n + 1)
        for n, text in enumerate(texts, start=first)
    ]


async def sent(messages: Iterable[pb.IndexFileRequest]) -> AsyncIterator[pb.IndexFileRequest]:
    for message in messages:
        yield message


async def index(client: Client, folder: str, file: str, *texts: str) -> int:
    message = pb.IndexFileRequest(folder_id=folder, file_id=file, chunks=chunks(*texts))
    return int((await client.files.IndexFile(sent([message]))).chunk_count)


async def search(client: Client, folder: str, query: str, limit: int = 0) -> list[pb.FileChunkHit]:
    request = pb.SearchFileChunksRequest(folder_ids=[folder], query=query, limit=limit)
    return list((await client.files.SearchFileChunks(request)).hits)


async def progress(client: Client, file: str) -> tuple[int, int] | None:
    answer = await client.files.GetFileProgress(pb.GetFileProgressRequest(file_ids=[file]))
    return next(((f.indexed_count, f.chunk_count) for f in answer.files), None)


async def made(client: Client) -> str:
    """Creates an archive, and returns its id."""
    request = archive_pb.CreateArchiveRequest(name=new_id("x"))
    return str((await client.archives.CreateArchive(request)).archive.id)


async def count(client: Client, archive: str) -> int:
    """Returns how many passages an archive has."""
    request = archive_pb.GetArchiveRequest(archive_id=archive)
    return int((await client.archives.GetArchive(request)).archive.passage_count)


async def upload(
    client: Client, archive: str, *messages: list[str], request_id: str = "", skip: int = 0
) -> list[passage_pb.UploadPassagesResponse]:
    return await upload_passages(
        client.passages,
        *map(new_passages, messages),
        archive_id=archive,
        request_id=request_id,
        skip_count=skip,
    )


async def put(client: Client, archive: str, text: str, **fields: Any) -> passage_pb.Passage:
    passage = passage_pb.NewPassage(text=text, **fields)
    request = passage_pb.InsertPassageRequest(archive_id=archive, passage=passage)
    return (await client.passages.InsertPassage(request)).passage
