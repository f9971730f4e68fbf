"""The steps of a search, which are the same for messages, passages and chunks of files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from strata.shared.clock import Clock
from strata.shared.search.outdated import DatedText, Outdated, possibly_outdated
from strata.shared.search.reranking import RerankingReport
from strata.shared.search.reranking.result_order import Ranked, Reranking, explain_rank
from strata.shared.search.result_merge import (
    DatabaseSnapshot,
    Matches,
    ResultRank,
    explain_outdated,
    explain_result,
    merge,
    search_both,
)
from strata.shared.search.results import Exclusion, SearchHit, SearchResult, exclusions
from strata.shared.search.time_expressions import TimeRange, time_ranges, zone_of
from strata.shared.search.vectors import Hit, StartGate
from strata.shared.telemetry import Histogram

# Results among which outdated statements are looked for: it takes time with each of them.
_COMPARED = 20

_Item = TypeVar("_Item")


class SearchSource(Protocol[_Item]):
    """The texts that a query is put to, in the index and in PostgreSQL, with its conditions."""

    @property
    def has_index(self) -> bool:
        """Whether the index is searched; otherwise PostgreSQL searches by words alone."""
        ...

    async def has_unknown_words(self) -> bool:
        """Returns whether the index does not know all words of the query."""
        ...

    def open_snapshot(
        self, limit: int, *, all_words: bool
    ) -> AbstractAsyncContextManager[DatabaseSnapshot[_Item]]:
        """Opens a snapshot of the database.

        Args:
            limit: Maximum of texts.
            all_words: Search all texts by words, also those that are indexed.
        """
        ...

    async def search_index(self, limit: int, *, weak: bool, after: StartGate) -> list[Hit]:
        """Searches the index; see `TextIndex.search`."""
        ...

    async def by_words(self, limit: int) -> Sequence[tuple[_Item, float]]:
        """Returns the texts that match the words best, with scores."""
        ...

    def id_of(self, item: _Item) -> str:
        """Returns the id of a text in the index."""
        ...

    def bonus(self, item: _Item) -> float:
        """Returns the bonus of a text that PostgreSQL found by words."""
        ...


class ExplainedSource(SearchSource[_Item], Protocol[_Item]):
    """A source whose results can be reranked and explained."""

    def text_of(self, item: _Item) -> str:
        """Returns the text that the reranker reads."""
        ...

    def preferences_met(self, item: _Item) -> list[str]:
        """Returns the preferences of the query that a text meets, as clauses in words."""
        ...

    def dated_text(self, item: _Item) -> DatedText | None:
        """Returns what is compared with other results, to find outdated statements.

        None leaves the text out: it is not known who states it, or when.
        """
        ...


@dataclass(frozen=True, slots=True)
class SearchExplanation(Generic[_Item]):
    """The data for the explanation of a search.

    Attributes:
        everything: The source without the conditions of the query.
        left_out_by: Returns the names of the conditions that a text does not meet.
    """

    everything: SearchSource[_Item]
    left_out_by: Callable[[_Item], Sequence[str]]


async def find(
    source: SearchSource[_Item], limit: int, *, weak: bool = False
) -> list[tuple[_Item, ResultRank]]:
    """Returns the matches of index and database in one order; may be more than `limit`.

    Args:
        source: The texts.
        limit: How many matches each arm should return at most.
        weak: Include matches of the index that are below the floor.
    """
    unknown = False
    if source.has_index:
        unknown = await source.has_unknown_words()
        matches = await search_both(
            lambda: source.open_snapshot(limit, all_words=unknown),
            lambda after: source.search_index(limit, weak=weak, after=after),
            lambda: source.by_words(limit),
        )
    else:
        matches = Matches((), {}, await source.by_words(limit))
    return merge(
        matches.hits,
        matches.by_id,
        [(source.id_of(item), item, score) for item, score in matches.by_words],
        source.bonus,
        unknown_words=unknown,
    )


class SearchPipeline:
    """Reads the times of a query, finds candidates, reranks them and explains the result.

    Args:
        clock: The time that words like "yesterday" refer to.
        reranking: Reorders the best results; None keeps the order of the fusion.
        seconds: Observes the time of each search; None for no metric.
    """

    def __init__(
        self,
        clock: Clock,
        reranking: Reranking | None = None,
        seconds: Histogram | None = None,
    ) -> None:
        self._clock = clock
        self._seconds = seconds or Histogram()
        self._unchanged = Reranking.off()
        self._reranking = reranking or self._unchanged

    def times(
        self, query: str, timezone: str, reference_time: datetime | None
    ) -> tuple[TimeRange, ...]:
        """Returns the times that a query names.

        Args:
            query: The query.
            timezone: IANA name of the user's time zone; empty or unknown means UTC.
            reference_time: The time that words like "yesterday" refer to; None for now.
        """
        return time_ranges(query, reference_time or self._clock.now(), zone_of(timezone))

    async def search(
        self,
        query: str,
        limit: int,
        source: ExplainedSource[_Item],
        times: tuple[TimeRange, ...],
        *,
        explanation: SearchExplanation[_Item] | None = None,
        rerank: bool = True,
    ) -> SearchResult[_Item]:
        """Returns the best texts, best first.

        Args:
            query: The query.
            limit: Maximum of texts.
            source: The texts, with the conditions of the query.
            times: The times that the query names.
            explanation: Explains the result; None for no explanations.
            rerank: False keeps the order of the fusion.
        """
        started = time.perf_counter()
        reranking = self._reranking if rerank else self._unchanged
        depth = reranking.depth(limit)
        candidates = (await find(source, depth))[:depth]
        ranked, report = await reranking.order(query, candidates, source.text_of)
        left_out: tuple[Exclusion, ...] = ()
        if explanation is not None:
            everything = await find(explanation.everything, limit, weak=True)
            left_out = exclusions(explanation.left_out_by, everything[:limit], source.id_of)
        outdated = _outdated(source, [result.item for result in ranked[:limit]])
        hits = tuple(
            SearchHit(
                result.item,
                result.place.mode,
                result.place.score,
                result.place.vector_rank,
                result.place.fts_rank,
                "" if explanation is None else _why(source, result, position, report, outdated),
                result.score,
                result.rank,
                outdated=outdated.get(source.id_of(result.item)),
            )
            for position, result in enumerate(ranked[:limit], start=1)
        )
        self._seconds.observe(time.perf_counter() - started)
        return SearchResult(hits, left_out, times, report)


def _outdated(source: ExplainedSource[_Item], items: Sequence[_Item]) -> dict[str, Outdated]:
    texts = map(source.dated_text, items[:_COMPARED])
    return possibly_outdated([text for text in texts if text is not None])


def _why(
    source: ExplainedSource[_Item],
    ranked: Ranked[_Item],
    position: int,
    report: RerankingReport | None,
    outdated: Mapping[str, Outdated],
) -> str:
    reasons = source.preferences_met(ranked.item)
    parts = [
        explain_result(ranked.place, reasons),
        explain_rank(ranked, position, report),
        explain_outdated(outdated.get(source.id_of(ranked.item))),
    ]
    return " ".join(filter(None, parts))
