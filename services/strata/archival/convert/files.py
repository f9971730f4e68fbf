"""Converts chunks of files between protos and the domain, and validates requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata.api.archival.v1 import file_index_service_pb2 as pb
from strata.archival.convert.archives import MAX_QUERY_CHARS, check_text, checked_tokens
from strata.archival.domain.chunks import FileChunk, FileProgress, FoundChunk
from strata.protocol.errors import invalid_field
from strata.shared.checks import Checks

DEFAULT_LIMIT = 5
MAX_LIMIT = 50
MAX_IDS = 500
MAX_HEADING_CHARS = 1_000


def to_chunks(
    wires: Sequence[pb.FileChunk],
    first: int,
    count_tokens: Callable[[str], int],
    limit: int,
) -> list[FileChunk]:
    """Validates and returns the next chunks of a file.

    Args:
        wires: The chunks as protos.
        first: The ordinal of the first of them.
        count_tokens: See `Embedder.limit_tokens`.
        limit: Maximum of tokens in a chunk.

    Raises:
        InvalidArgumentError: A text is blank, lines are wrong, or a chunk is missing.
        FailedPreconditionError: ``TOKEN_LIMIT_EXCEEDED``.
    """
    checks = Checks()
    for index, wire in enumerate(wires):
        _check_chunk(checks, f"chunks[{index}]", wire, first + index)
    checks.done()
    for wire in wires:
        # A token has at least one byte, so short chunks need not be counted.
        if len(wire.text.encode()) > limit // 2:
            checked_tokens(wire.text, count_tokens, limit)
    return [
        FileChunk(wire.ordinal, wire.text, wire.start_line, wire.end_line, wire.heading)
        for wire in wires
    ]


def check_source(folder_id: str, file_id: str) -> tuple[str, str]:
    """Validates and returns folder and file of an upload.

    Raises:
        InvalidArgumentError: An id is invalid.
    """
    checks = Checks()
    checks.id(folder_id, "folder", "folder_id")
    checks.id(file_id, "file", "file_id")
    checks.done()
    return folder_id, file_id


def check_ids(ids: Sequence[str], prefix: str, *, maximum: int | None = MAX_IDS) -> list[str]:
    """Validates and returns ids of files or folders, sorted and without duplicates.

    Raises:
        InvalidArgumentError: There are too many, or one of them is invalid.
    """
    field = f"{prefix}_ids"
    if maximum is not None and len(ids) > maximum:
        raise invalid_field(field, f"must not be more than {maximum}")
    checks = Checks()
    for index, value in enumerate(ids):
        checks.id(value, prefix, f"{field}[{index}]")
    checks.done()
    return sorted(set(ids))


def to_search(request: pb.SearchFileChunksRequest) -> tuple[list[str], str, int]:
    """Returns folders, query and limit of a search.

    Raises:
        InvalidArgumentError: One of them is wrong.
    """
    checks = Checks()
    check_text(checks, request.query, "query")
    valid = len(request.query) <= MAX_QUERY_CHARS
    checks.unless(valid, "query", f"must not exceed {MAX_QUERY_CHARS} characters")
    checks.not_negative(request.limit, "limit")
    checks.done()
    folders = check_ids(request.folder_ids, "folder")
    return folders, request.query, min(request.limit or DEFAULT_LIMIT, MAX_LIMIT)


def progress_to_proto(progress: FileProgress) -> pb.FileProgress:
    """Returns the progress of a file as a proto."""
    return pb.FileProgress(
        file_id=progress.file_id,
        chunk_count=progress.chunk_count,
        indexed_count=progress.indexed_count,
    )


def hit_to_proto(hit: FoundChunk) -> pb.FileChunkHit:
    """Returns a found chunk as a proto."""
    chunk = hit.stored.chunk
    return pb.FileChunkHit(
        file_id=hit.stored.file_id,
        chunk=pb.FileChunk(
            ordinal=chunk.ordinal,
            text=chunk.text,
            start_line=chunk.start_line,
            end_line=chunk.end_line,
            heading=chunk.heading,
        ),
        score=hit.score,
    )


def _check_chunk(checks: Checks, field: str, wire: pb.FileChunk, ordinal: int) -> None:
    check_text(checks, wire.text, f"{field}.text")
    checks.unless(wire.ordinal == ordinal, f"{field}.ordinal", f"must be {ordinal}, the next")
    checks.unless(wire.start_line >= 1, f"{field}.start_line", "must be at least 1")
    valid = wire.end_line >= wire.start_line
    checks.unless(valid, f"{field}.end_line", "must not be before start_line")
    checks.text(wire.heading, f"{field}.heading", most=MAX_HEADING_CHARS)
