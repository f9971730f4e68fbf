"""Chunks of files of core memory, which are searched by meaning and words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from strata.shared.search.result_merge import DatabaseSnapshot


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A chunk of a file.

    Attributes:
        ordinal: Position in the file, from 0.
        text: The text.
        start_line: First line, from 1.
        end_line: Last line.
        heading: The name of the file and the headings above the text, a line each; may be empty.
    """

    ordinal: int
    text: str
    start_line: int
    end_line: int
    heading: str = ""

    @property
    def indexed_text(self) -> str:
        """The text that is searched: the heading and the text, which need not repeat it."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A stored chunk, with its file and the set that contains it."""

    set_id: str
    file_id: str
    chunk: FileChunk

    @property
    def key(self) -> str:
        """The id of the chunk in the index."""
        return chunk_key(self.set_id, self.chunk.ordinal)


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk that matches a query; higher scores are better."""

    stored: StoredChunk
    score: float


@dataclass(frozen=True, slots=True)
class FoundChunks:
    """The best chunks, best first.

    Attributes:
        hits: The chunks.
        below_floor: How many of the best chunks were left out because their score is too low;
            counted only with `explain`.
    """

    hits: tuple[FoundChunk, ...] = ()
    below_floor: int = 0


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How many chunks of a file are indexed."""

    file_id: str
    chunk_count: int
    indexed_count: int


class SetState(StrEnum):
    """The state of a set of chunks: being uploaded, searched, or to be deleted."""

    STAGED = "staged"
    SERVING = "serving"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class QueuedSet:
    """A set that waits for the indexer."""

    project_id: str
    id: str
    state: SetState


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """The next chunks of a set to index, in their order; at least one."""

    set_id: str
    folder_id: str
    file_id: str
    chunks: Sequence[FileChunk]


class FileChunkStore(Protocol):
    """Chunks of the current project's files; each method is one transaction.

    The chunks of a file are uploaded as a new set beside the serving one, which they then
    replace atomically.
    """

    async def begin(self, folder_id: str, file_id: str) -> str:
        """Creates an empty, invisible (staged) set; returns its id."""
        ...

    async def add(self, set_id: str, chunks: Sequence[FileChunk]) -> None:
        """Stores chunks of a staged set, in one statement.

        Raises:
            AbortedError: ``EDIT_CONFLICT``: the file was dropped meanwhile.
        """
        ...

    async def serve(self, set_id: str, chunk_count: int, digest: str) -> None:
        """Makes a staged set replace the file's previous one.

        If the previous set has the same digest, it stays instead, with its index entries.

        Raises:
            AbortedError: ``EDIT_CONFLICT``: the file was dropped meanwhile.
        """
        ...

    async def discard(self, set_id: str) -> None:
        """Drops a staged set; does nothing if there is none."""
        ...

    async def progress(self, file_ids: Sequence[str]) -> list[FileProgress]:
        """Returns the progress of files from counters, without reading chunks."""
        ...

    async def drop(self, file_ids: Sequence[str], folder_ids: Sequence[str]) -> int:
        """Deletes the chunks of files and of folders; returns their number."""
        ...

    def open_snapshot(
        self, words: str, folder_ids: Sequence[str], limit: int, *, all_words: bool = False
    ) -> AbstractAsyncContextManager[DatabaseSnapshot[StoredChunk]]:
        """Opens a snapshot of the folders' chunks, identified by key.

        Args:
            words: Words to search in the chunks that wait for the index.
            folder_ids: The folders.
            limit: Maximum of results by words.
            all_words: Search all chunks by words, also those that are indexed.
        """
        ...

    async def by_words(
        self, words: str, folder_ids: Sequence[str], limit: int
    ) -> list[tuple[StoredChunk, float]]:
        """Returns the folders' chunks that match the words best, with their scores."""
        ...


def chunk_key(set_id: str, ordinal: int) -> str:
    """Returns the id of a chunk in the index."""
    return f"{set_id}/{ordinal}"


def split_key(key: str) -> tuple[str, int]:
    """Returns set and ordinal of an id that `chunk_key` made."""
    set_id, _, ordinal = key.rpartition("/")
    return set_id, int(ordinal)
