"""Searches chunks of files: candidates from the index, checked against PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from strata.archival.domain.chunks import FileChunkStore, FoundChunk, FoundChunks, StoredChunk
from strata.archival.search.index import ChunkIndex
from strata.shared.context import current_project
from strata.shared.search.pipeline import find
from strata.shared.search.result_merge import DatabaseSnapshot
from strata.shared.search.vectors import Hit, StartGate
from strata.shared.telemetry import Histogram

# Requests more chunks, since the index may still have chunks of replaced files.
_CHUNK_MARGIN = 2


class FileChunkSearch:
    """Searches chunks of files by meaning and by words."""

    def __init__(
        self, store: FileChunkStore, index: ChunkIndex, seconds: Histogram | None = None
    ) -> None:
        self._store = store
        self._index = index
        self._seconds = seconds or Histogram()

    async def search(
        self, folder_ids: Sequence[str], query: str, limit: int, *, explain: bool = False
    ) -> FoundChunks:
        """Returns the best chunks of the files in some folders.

        Args:
            folder_ids: The folders.
            query: The query.
            limit: Maximum of chunks.
            explain: Count the chunks whose score is too low.
        """
        if not folder_ids:
            return FoundChunks()
        started = time.perf_counter()
        source = _Chunks(self._store, self._index, query, folder_ids)
        ranked = await find(source, limit, weak=explain)
        self._seconds.observe(time.perf_counter() - started)
        hits = [FoundChunk(chunk, hit.score) for chunk, hit in ranked if not hit.weak]
        below_floor = sum(hit.weak for _, hit in ranked[:limit])
        return FoundChunks(tuple(hits[:limit]), below_floor)


class _Chunks:
    """The chunks of the files in some folders, as `SearchSource`."""

    has_index = True

    def __init__(
        self, store: FileChunkStore, index: ChunkIndex, query: str, folder_ids: Sequence[str]
    ) -> None:
        self._store = store
        self._index = index
        self._query = query
        self._folder_ids = folder_ids

    async def has_unknown_words(self) -> bool:
        return await self._index.has_unknown_words(self._query)

    def open_snapshot(
        self, limit: int, *, all_words: bool
    ) -> AbstractAsyncContextManager[DatabaseSnapshot[StoredChunk]]:
        return self._store.open_snapshot(self._query, self._folder_ids, limit, all_words=all_words)

    async def search_index(self, limit: int, *, weak: bool, after: StartGate) -> list[Hit]:
        return await self._index.search(
            current_project(),
            self._query,
            self._folder_ids,
            limit * _CHUNK_MARGIN,
            weak=weak,
            after=after,
        )

    async def by_words(self, limit: int) -> Sequence[tuple[StoredChunk, float]]:
        return await self._store.by_words(self._query, self._folder_ids, limit)

    def id_of(self, chunk: StoredChunk) -> str:
        return chunk.key

    def bonus(self, chunk: StoredChunk) -> float:
        return 0.0
