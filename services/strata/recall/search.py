"""Search over messages: the index proposes, PostgreSQL disposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from strata.recall.domain.messages import Message
from strata.recall.domain.query_roles import query_role
from strata.recall.domain.search import (
    Answer,
    Exclusion,
    Mode,
    SearchHit,
    SearchQuery,
    SearchStore,
    exclusions,
)
from strata.recall.domain.search_text import searchable_text
from strata.recall.index import MessageIndex
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.reranking import Report
from strata.shared.reranking.result_order import Ranked, Reranking, explain_rank
from strata.shared.time_expressions import TimeRange, time_ranges, zone_of
from strata.shared.vectors.result_merge import Matches, Place, explained, find, merge

# Where a phrase must occur, PostgreSQL drops what does not hold it.
_PHRASE_MARGIN = 5


class MessageSearch:
    """Finds messages by meaning and by words.

    Args:
        store: The log.
        index: The index; None searches by words alone.
        clock: Says what "yesterday" is.
        reranking: Puts the best results into order; None leaves them in that of the fusion.
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

    async def search(self, query: SearchQuery) -> Answer:
        """Returns the best messages, best first."""
        now = query.reference_time or self._clock.now()
        spoken = time_ranges(query.text, now, zone_of(query.timezone))
        ranked, report = await self._best(query, spoken)
        found = ranked[: query.limit]
        messages = [each.item for each in found]
        around: dict[str, tuple[Message, ...]] = {}
        if query.neighbours and found:
            around = await self._store.around(messages, query.neighbours)
        left_out: tuple[Exclusion, ...] = ()
        if query.explain:
            everything = await self._find(query.without_conditions(), spoken, weak=True)
            left_out = exclusions(query, everything[: query.limit])
        hits = tuple(
            SearchHit(
                each.item,
                each.place.mode,
                each.place.score,
                each.place.vector_rank,
                each.place.fts_rank,
                _why(each, place, query, spoken, report) if query.explain else "",
                around.get(each.item.id, ()),
                each.score,
                each.rank,
            )
            for place, each in enumerate(found, start=1)
        )
        return Answer(hits, left_out, spoken, report)

    async def _best(
        self, query: SearchQuery, spoken: Sequence[TimeRange]
    ) -> tuple[list[Ranked[Message]], Report | None]:
        # Who asks for words alone wants the order of the words.
        reranking = self._unchanged if query.mode is Mode.FULL_TEXT else self._reranking
        deep = replace(query, limit=reranking.depth(query.limit))
        found = await self._find(deep, spoken)
        return await reranking.order(query.text, found, searchable_text)

    async def _find(
        self, query: SearchQuery, spoken: Sequence[TimeRange], *, weak: bool = False
    ) -> list[tuple[Message, Place]]:
        by_words = partial(self._store.by_words, query, spoken)
        index = self._index
        unknown = False
        if index is None or query.mode is Mode.FULL_TEXT:
            found: Matches[Message] = Matches((), {}, await by_words())
        else:
            limit = query.limit * (_PHRASE_MARGIN if '"' in query.text else 1)
            if query.mode is Mode.HYBRID:
                unknown = await index.has_unknown_words(query.text)
            found = await find(
                partial(self._store.look, query, spoken, all_words=unknown),
                lambda after: index.search(
                    current_project(), query, spoken, limit, weak=weak, after=after
                ),
                by_words,
            )
        return merge(
            found.hits,
            found.by_id,
            [(message.id, message, score) for message, score in found.by_words],
            unknown_words=unknown,
        )


def _why(
    ranked: Ranked[Message],
    place: int,
    query: SearchQuery,
    spoken: Sequence[TimeRange],
    report: Report | None,
) -> str:
    """Tells in words why a message stands where it stands."""
    reasons = []
    message = ranked.item
    if query_role(query.text) is message.role:
        reasons.append(f"the question is about words of the {message.role.value}")
    reasons += [
        f"it was said at the time of {each.words!r}"
        for each in spoken
        if each.holds(message.create_time)
    ]
    return " ".join(
        filter(None, [explained(ranked.place, reasons), explain_rank(ranked, place, report)])
    )
