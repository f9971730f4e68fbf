"""Searches passages: candidates from the index, checked against PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from strata.archival.domain.passages import Filter, Passage
from strata.archival.domain.search import Search
from strata.archival.domain.store import PassageStore
from strata.archival.search.index import PassageIndex
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.search.outdated import DatedText
from strata.shared.search.pipeline import SearchExplanation, SearchPipeline
from strata.shared.search.reranking.result_order import Reranking
from strata.shared.search.result_merge import DatabaseSnapshot
from strata.shared.search.results import SearchResult
from strata.shared.search.time_expressions import TimeRange
from strata.shared.search.time_preference import WHEN_WEIGHT
from strata.shared.search.vectors import Hit, StartGate
from strata.shared.telemetry import Histogram


class PassageSearch:
    """Searches passages by meaning and by words.

    Args:
        store: Stores the passages.
        index: The index of passages.
        clock: The time that words like "yesterday" refer to.
        reranking: Reorders the best results; None keeps the order of the fusion.
        seconds: Observes the time of each search; None for no metric.
    """

    def __init__(
        self,
        store: PassageStore,
        index: PassageIndex,
        clock: Clock,
        reranking: Reranking | None = None,
        seconds: Histogram | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._pipeline = SearchPipeline(clock, reranking, seconds)

    async def search(self, search: Search) -> SearchResult[Passage]:
        """Returns the best passages, best first; none for a blank query.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND``; ``ARCHIVE_NOT_FOUND`` if nothing was found.
        """
        if not search.query.strip():
            return SearchResult()
        archives = search.archive_ids or await self._store.archive_ids(search.agent_id)
        if not archives:
            return SearchResult()
        times = self._pipeline.times(search.query, search.timezone, search.reference_time)
        explanation = None
        if search.explain:
            explanation = SearchExplanation(
                self._passages(search, Filter(tuple(archives)), times), search.left_out_by
            )
        result = await self._pipeline.search(
            search.query,
            search.top_k,
            self._passages(search, search.within(archives), times),
            times,
            explanation=explanation,
        )
        if search.archive_ids and not result.hits:
            # Checked only now, so that a search with results costs no further statement.
            await self._store.check_archives(search.archive_ids)
        return result

    def _passages(self, search: Search, within: Filter, times: Sequence[TimeRange]) -> _Passages:
        return _Passages(self._store, self._index, search.query, within, times)


class _Passages:
    """The passages that meet the conditions of a search, as `ExplainedSource`."""

    has_index = True

    def __init__(
        self,
        store: PassageStore,
        index: PassageIndex,
        query: str,
        within: Filter,
        times: Sequence[TimeRange],
    ) -> None:
        self._store = store
        self._index = index
        self._query = query
        self._within = within
        self._times = times

    async def has_unknown_words(self) -> bool:
        return await self._index.has_unknown_words(
            current_project(), self._query, self._within.archive_ids
        )

    def open_snapshot(
        self, limit: int, *, all_words: bool
    ) -> AbstractAsyncContextManager[DatabaseSnapshot[Passage]]:
        return self._store.open_snapshot(self._query, self._within, limit, all_words=all_words)

    async def search_index(self, limit: int, *, weak: bool, after: StartGate) -> list[Hit]:
        return await self._index.search(
            current_project(),
            self._query,
            self._within,
            limit,
            self._times,
            weak=weak,
            after=after,
        )

    async def by_words(self, limit: int) -> Sequence[tuple[Passage, float]]:
        return await self._store.by_words(self._query, self._within, limit)

    def id_of(self, passage: Passage) -> str:
        return passage.id

    def bonus(self, passage: Passage) -> float:
        return WHEN_WEIGHT * len(self._of_that_time(passage))

    def text_of(self, passage: Passage) -> str:
        return passage.text

    def dated_text(self, passage: Passage) -> DatedText | None:
        # A changed passage states something newer than its time. Documents that no agent stored
        # are about many things.
        if passage.revision > 1 or not passage.origin.agent_id:
            return None
        speaker = f"{passage.archive_id} {passage.origin.agent_id}"
        return DatedText(passage.id, passage.text, speaker, passage.create_time.timestamp())

    def preferences_met(self, passage: Passage) -> list[str]:
        return [
            f"it was stored at the time of {time_range.words!r}"
            for time_range in self._of_that_time(passage)
        ]

    def _of_that_time(self, passage: Passage) -> list[TimeRange]:
        return [time_range for time_range in self._times if time_range.holds(passage.create_time)]
