"""Searches passages and files: candidates from the index, checked against PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from strata.archival.domain.chunks import FileChunkStore, FoundChunk, FoundChunks
from strata.archival.domain.passages import Filter, Passage
from strata.archival.domain.search import (
    Exclusion,
    FoundPassage,
    Search,
    SearchResult,
    exclusions,
)
from strata.archival.domain.store import PassageStore
from strata.archival.index import ChunkIndex, PassageIndex
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.search.reranking import Report
from strata.shared.search.reranking.result_order import Ranked, Reranking, explain_rank
from strata.shared.search.result_merge import ResultRank, explain_result, merge, search_both
from strata.shared.search.time_expressions import TimeRange, time_ranges, zone_of
from strata.shared.search.time_preference import WHEN_WEIGHT

# Requests more chunks, since the index may still have chunks of replaced files.
_CHUNK_MARGIN = 2


class PassageSearch:
    """Searches passages by meaning and by words.

    Args:
        store: Stores the passages.
        index: The index of passages.
        clock: The time that words like "yesterday" refer to.
        reranking: Reorders the best results; None keeps the order of the fusion.
    """

    def __init__(
        self,
        store: PassageStore,
        index: PassageIndex,
        clock: Clock,
        reranking: Reranking | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._reranking = reranking or Reranking.off()

    async def search(self, search: Search) -> SearchResult:
        """Returns the best passages, best first; none for a blank query."""
        if not search.query.strip():
            return SearchResult()
        archives = search.archive_ids or await self._store.archive_ids(search.agent_id)
        if not archives:
            return SearchResult()
        now = search.reference_time or self._clock.now()
        spoken = time_ranges(search.query, now, zone_of(search.timezone))
        depth = self._reranking.depth(search.top_k)
        candidates = await self._find(search, search.within(archives), spoken, depth)
        ranked, report = await self._reranking.order(
            search.query, candidates, lambda passage: passage.text
        )
        left_out: tuple[Exclusion, ...] = ()
        if search.explain:
            everywhere = Filter(tuple(archives))
            everything = await self._find(search, everywhere, spoken, search.top_k, weak=True)
            left_out = exclusions(search, everything)
        hits = tuple(
            FoundPassage(
                result.item,
                result.place.mode,
                result.place.score,
                result.place.vector_rank,
                result.place.fts_rank,
                _why(result, place, spoken, report) if search.explain else "",
                result.score,
                result.rank,
            )
            for place, result in enumerate(ranked[: search.top_k], start=1)
        )
        return SearchResult(hits, left_out, spoken, report)

    async def _find(
        self,
        search: Search,
        within: Filter,
        spoken: Sequence[TimeRange],
        limit: int,
        *,
        weak: bool = False,
    ) -> list[tuple[Passage, ResultRank]]:
        unknown = await self._index.has_unknown_words(
            current_project(), search.query, within.archive_ids
        )
        matches = await search_both(
            partial(self._store.open_snapshot, search.query, within, limit, all_words=unknown),
            lambda after: self._index.search(
                current_project(), search.query, within, limit, spoken, weak=weak, after=after
            ),
            partial(self._store.by_words, search.query, within, limit),
        )
        ranked = merge(
            matches.hits,
            matches.by_id,
            [(passage.id, passage, score) for passage, score in matches.by_words],
            lambda passage: WHEN_WEIGHT * len(_of_that_time(passage, spoken)),
            unknown_words=unknown,
        )
        return ranked[:limit]


class FileChunkSearch:
    """Searches chunks of files by meaning and by words."""

    def __init__(self, store: FileChunkStore, index: ChunkIndex) -> None:
        self._store = store
        self._index = index

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
        unknown = await self._index.has_unknown_words(query)
        matches = await search_both(
            partial(self._store.open_snapshot, query, folder_ids, limit, all_words=unknown),
            lambda after: self._index.search(
                current_project(),
                query,
                folder_ids,
                limit * _CHUNK_MARGIN,
                weak=explain,
                after=after,
            ),
            partial(self._store.by_words, query, folder_ids, limit),
        )
        ranked = merge(
            matches.hits,
            matches.by_id,
            [(stored.key, stored, score) for stored, score in matches.by_words],
            unknown_words=unknown,
        )
        hits = [FoundChunk(stored, place.score) for stored, place in ranked if not place.weak]
        below_floor = sum(place.weak for _, place in ranked[:limit])
        return FoundChunks(tuple(hits[:limit]), below_floor)


def _of_that_time(passage: Passage, spoken: Sequence[TimeRange]) -> list[TimeRange]:
    return [time_range for time_range in spoken if time_range.holds(passage.create_time)]


def _why(
    ranked: Ranked[Passage], place: int, spoken: Sequence[TimeRange], report: Report | None
) -> str:
    named = _of_that_time(ranked.item, spoken)
    reasons = [f"it was stored at the time of {time_range.words!r}" for time_range in named]
    return " ".join(
        filter(None, [explain_result(ranked.place, reasons), explain_rank(ranked, place, report)])
    )
