"""Chunks of files: what core memory cuts its files into, to be found by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from strata.shared.vectors.result_merge import Look


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A piece of a file; ``ordinal`` counts from 0, lines from 1."""

    ordinal: int
    text: str
    start_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk of a file of the project, in the set that holds it."""

    set_id: str
    file_id: str
    chunk: FileChunk

    @property
    def key(self) -> str:
        """Names it in the index."""
        return chunk_key(self.set_id, self.chunk.ordinal)


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk that answers a query; higher scores are better."""

    stored: StoredChunk
    score: float


@dataclass(frozen=True, slots=True)
class FoundChunks:
    """The best chunks, best first.

    Attributes:
        hits: The chunks.
        below_floor: How many of the nearest chunks are left out because they are not related to
            the query; 0 unless asked for.
    """

    hits: tuple[FoundChunk, ...] = ()
    below_floor: int = 0


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a file is indexed."""

    file_id: str
    chunk_count: int
    indexed_count: int


class SetState(StrEnum):
    """In what state a set of chunks is."""

    STAGED = "staged"
    SERVING = "serving"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class QueuedSet:
    """A set that the indexer has to do something about."""

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

    The chunks of a file come as a new set beside the one that serves, and take its place
    all at once.
    """

    async def begin(self, folder_id: str, file_id: str) -> str:
        """Makes an empty set that nobody sees yet, and returns its id."""
        ...

    async def add(self, set_id: str, chunks: Sequence[FileChunk]) -> None:
        """Stores chunks of a staged set, in one statement.

        Raises:
            AbortedError: ``EDIT_CONFLICT``: the file was dropped meanwhile.
        """
        ...

    async def serve(self, set_id: str, chunk_count: int, digest: str) -> None:
        """Lets a staged set take the place of the file's former one.

        A former set of the same digest stays, with all that is indexed of it.

        Raises:
            AbortedError: ``EDIT_CONFLICT``: the file was dropped meanwhile.
        """
        ...

    async def discard(self, set_id: str) -> None:
        """Forgets a staged set; no error if it is not there."""
        ...

    async def progress(self, file_ids: Sequence[str]) -> list[FileProgress]:
        """Returns how far files are indexed; reads counters, no chunks."""
        ...

    async def drop(self, file_ids: Sequence[str], folder_ids: Sequence[str]) -> int:
        """Deletes the chunks of files and of folders, and returns how many there were."""
        ...

    def look(
        self, words: str, folder_ids: Sequence[str], limit: int, *, all_words: bool = False
    ) -> AbstractAsyncContextManager[Look[StoredChunk]]:
        """Looks at the folders' chunks as they are when the context is entered; named by key.

        Args:
            words: What those that wait for the index are searched for.
            folder_ids: The folders.
            limit: Most of these.
            all_words: Search all chunks by words, also those that the index has.
        """
        ...

    async def by_words(
        self, words: str, folder_ids: Sequence[str], limit: int
    ) -> list[tuple[StoredChunk, float]]:
        """Returns, of the folders' chunks, the best by words with their scores."""
        ...


def chunk_key(set_id: str, ordinal: int) -> str:
    """Returns the name of a chunk in the index."""
    return f"{set_id}/{ordinal}"


def split_key(key: str) -> tuple[str, int]:
    """Returns set and ordinal of a name that `chunk_key` made."""
    set_id, _, ordinal = key.rpartition("/")
    return set_id, int(ordinal)
