"""Search over passages and files: the index proposes, PostgreSQL disposes.

The text and the conditions of each result are those of PostgreSQL, so that an index that
lags behind can miss something but never show what is wrong. Without the index the words
alone are searched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strata.archival.domain.chunks import FileChunkStore, FoundChunk
from strata.archival.domain.passages import Found, Search
from strata.archival.domain.store import PassageStore
from strata.archival.index import ChunkIndex, PassageIndex
from strata.shared.context import current_project
from strata.shared.errors import UnavailableError
from strata.shared.logs import get_logger
from strata.shared.vectors import Hit

# What waits for the index is found by words alone. Its score is set between those of the
# hits: a good match by words ranks with a fair one by meaning.
_PENDING_WEIGHT = 0.5
# Chunks of a file that was replaced stand in the index until they are forgotten there.
_CHUNK_MARGIN = 2
_Item = TypeVar("_Item")
_log = get_logger(__name__)


class PassageSearch:
    """Finds passages by meaning and by words."""

    def __init__(self, store: PassageStore, index: PassageIndex) -> None:
        self._store = store
        self._index = index

    async def search(self, search: Search) -> list[Found]:
        """Returns the best passages, best first; none for a blank query."""
        if not search.query.strip():
            return []
        archives = search.archive_ids or await self._store.archive_ids(search.agent_id)
        if not archives:
            return []
        within = search.within(archives)
        hits = await _if_there(
            self._index.search(current_project(), search.query, within, search.top_k)
        )
        by_id, by_words = await self._store.matching(
            [hit.document_id for hit in hits or ()],
            search.query,
            within,
            search.top_k,
            all_words=hits is None,
        )
        ranked = _ranked(
            hits or (),
            {passage.id: passage for passage in by_id},
            [(passage.id, passage, score) for passage, score in by_words],
        )
        return [
            Found(passage, place.mode, place.score, place.vector_rank, place.fts_rank)
            for passage, place in ranked[: search.top_k]
        ]


class FileChunkSearch:
    """Finds chunks of files by meaning and by words."""

    def __init__(self, store: FileChunkStore, index: ChunkIndex) -> None:
        self._store = store
        self._index = index

    async def search(self, folder_ids: Sequence[str], query: str, limit: int) -> list[FoundChunk]:
        """Returns the best chunks of the files in some folders, best first."""
        if not folder_ids:
            return []
        hits = await _if_there(
            self._index.search(current_project(), query, folder_ids, limit * _CHUNK_MARGIN)
        )
        by_key, by_words = await self._store.matching(
            [hit.document_id for hit in hits or ()],
            query,
            folder_ids,
            limit,
            all_words=hits is None,
        )
        ranked = _ranked(
            hits or (),
            {stored.key: stored for stored in by_key},
            [(stored.key, stored, score) for stored, score in by_words],
        )
        return [FoundChunk(stored, place.score) for stored, place in ranked[:limit]]


@dataclass(frozen=True, slots=True)
class _Place:
    mode: str
    score: float
    vector_rank: int | None
    fts_rank: int | None


def _ranked(
    hits: Sequence[Hit],
    by_id: Mapping[str, _Item],
    by_words: Sequence[tuple[str, _Item, float]],
) -> list[tuple[_Item, _Place]]:
    """Puts what the index found and what only the words found into one order."""
    best = max((score for _, _, score in by_words), default=0.0) or 1.0
    found = [
        (hit.document_id, by_id[hit.document_id], _place(hit))
        for hit in hits
        if hit.document_id in by_id
    ] + [
        (name, item, _Place("fts", _PENDING_WEIGHT * score / best, None, rank))
        for rank, (name, item, score) in enumerate(by_words, start=1)
        if name not in by_id
    ]
    found.sort(key=lambda each: (-each[2].score, each[0]))
    return [(item, place) for _, item, place in found]


def _place(hit: Hit) -> _Place:
    mode = "fts"
    if hit.vector_rank is not None:
        mode = "vector" if hit.fts_rank is None else "hybrid"
    return _Place(mode, hit.score, hit.vector_rank, hit.fts_rank)


async def _if_there(asked: Awaitable[list[Hit]]) -> list[Hit] | None:
    try:
        return await asked
    except UnavailableError as error:
        _log.warning("searching by words only", reason=error.reason.value)
        return None
