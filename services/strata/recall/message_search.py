"""Searches messages: candidates from the index, checked against PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from strata.recall.domain.messages import Message
from strata.recall.domain.query_roles import query_role
from strata.recall.domain.search import (
    Exclusion,
    Mode,
    SearchHit,
    SearchQuery,
    SearchResult,
    SearchStore,
    exclusions,
)
from strata.recall.domain.search_text import searchable_text
from strata.recall.index import MessageIndex
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.search.reranking import Report
from strata.shared.search.reranking.result_order import Ranked, Reranking, explain_rank
from strata.shared.search.result_merge import (
    Matches,
    ResultRank,
    explain_result,
    merge,
    search_both,
)
from strata.shared.search.time_expressions import TimeRange, time_ranges, zone_of

# Factor for queries with phrases, since PostgreSQL drops candidates without the phrase.
_PHRASE_MARGIN = 5


class MessageSearch:
    """Searches messages by meaning and by words.

    Args:
        store: Stores the messages.
        index: The index; None to search only by words.
        clock: The time that words like "yesterday" refer to.
        reranking: Reorders the best results; None keeps the order of the fusion.
    """

    def __init__(
        self,
        store: SearchStore,
        index: MessageIndex | None,
        clock: Clock,
        reranking: Reranking | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._unchanged = Reranking.off()
        self._reranking = reranking or self._unchanged

    async def search(self, query: SearchQuery) -> SearchResult:
        """Returns the best messages, best first."""
        now = query.reference_time or self._clock.now()
        spoken = time_ranges(query.text, now, zone_of(query.timezone))
        ranked, report = await self._best(query, spoken)
        best = ranked[: query.limit]
        messages = [result.item for result in best]
        around: dict[str, tuple[Message, ...]] = {}
        if query.neighbours and best:
            around = await self._store.around(messages, query.neighbours)
        left_out: tuple[Exclusion, ...] = ()
        if query.explain:
            everything = await self._find(query.without_conditions(), spoken, weak=True)
            left_out = exclusions(query, everything[: query.limit])
        hits = tuple(
            SearchHit(
                result.item,
                result.place.mode,
                result.place.score,
                result.place.vector_rank,
                result.place.fts_rank,
                _why(result, place, query, spoken, report) if query.explain else "",
                around.get(result.item.id, ()),
                result.score,
                result.rank,
            )
            for place, result in enumerate(best, start=1)
        )
        return SearchResult(hits, left_out, spoken, report)

    async def _best(
        self, query: SearchQuery, spoken: Sequence[TimeRange]
    ) -> tuple[list[Ranked[Message]], Report | None]:
        # A full-text search keeps the order of the search by words.
        reranking = self._unchanged if query.mode is Mode.FULL_TEXT else self._reranking
        deep = replace(query, limit=reranking.depth(query.limit))
        candidates = await self._find(deep, spoken)
        return await reranking.order(query.text, candidates, searchable_text)

    async def _find(
        self, query: SearchQuery, spoken: Sequence[TimeRange], *, weak: bool = False
    ) -> list[tuple[Message, ResultRank]]:
        by_words = partial(self._store.by_words, query, spoken)
        index = self._index
        unknown = False
        if index is None or query.mode is Mode.FULL_TEXT:
            matches: Matches[Message] = Matches((), {}, await by_words())
        else:
            limit = query.limit * (_PHRASE_MARGIN if '"' in query.text else 1)
            if query.mode is Mode.HYBRID:
                unknown = await index.has_unknown_words(query.text)
            matches = await search_both(
                partial(self._store.open_snapshot, query, spoken, all_words=unknown),
                lambda after: index.search(
                    current_project(), query, spoken, limit, weak=weak, after=after
                ),
                by_words,
            )
        return merge(
            matches.hits,
            matches.by_id,
            [(message.id, message, score) for message, score in matches.by_words],
            unknown_words=unknown,
        )


def _why(
    ranked: Ranked[Message],
    place: int,
    query: SearchQuery,
    spoken: Sequence[TimeRange],
    report: Report | None,
) -> str:
    """Explains the rank of a message in words."""
    reasons = []
    message = ranked.item
    if query_role(query.text) is message.role:
        reasons.append(f"the question is about words of the {message.role.value}")
    reasons += [
        f"it was said at the time of {time_range.words!r}"
        for time_range in spoken
        if time_range.holds(message.create_time)
    ]
    return " ".join(
        filter(None, [explain_result(ranked.place, reasons), explain_rank(ranked, place, report)])
    )
