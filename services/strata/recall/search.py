"""Search over messages: the index proposes, PostgreSQL disposes."""

from __future__ import annotations

from collections.abc import Sequence

from strata.recall.domain.messages import Message
from strata.recall.domain.questions import whose_words
from strata.recall.domain.search import (
    Answer,
    Exclusion,
    Mode,
    SearchHit,
    SearchQuery,
    SearchStore,
    exclusions,
)
from strata.recall.index import MessageIndex
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.timewords import TimeRange, time_ranges, zone_of
from strata.shared.vectors.merging import Place, explained, if_there, merge

# Where a phrase must occur, PostgreSQL drops what does not hold it.
_PHRASE_MARGIN = 5


class MessageSearch:
    """Finds messages by meaning and by words.

    Args:
        store: The log.
        index: The index; None searches by words alone.
        clock: Says what "yesterday" is.
    """

    def __init__(self, store: SearchStore, index: MessageIndex | None, clock: Clock) -> None:
        self._store = store
        self._index = index
        self._clock = clock

    async def search(self, query: SearchQuery) -> Answer:
        """Returns the best messages, best first."""
        now = query.reference_time or self._clock.now()
        spoken = time_ranges(query.text, now, zone_of(query.timezone))
        found = (await self._find(query, spoken))[: query.limit]
        messages = [message for message, _ in found]
        around: dict[str, tuple[Message, ...]] = {}
        if query.neighbours and found:
            around = await self._store.around(messages, query.neighbours)
        left_out: tuple[Exclusion, ...] = ()
        if query.explain:
            everything = await self._find(query.without_conditions(), spoken)
            left_out = exclusions(query, [message for message, _ in everything[: query.limit]])
        hits = tuple(
            SearchHit(
                message,
                place.mode,
                place.score,
                place.vector_rank,
                place.fts_rank,
                _why(message, place, query, spoken) if query.explain else "",
                around.get(message.id, ()),
            )
            for message, place in found
        )
        return Answer(hits, left_out, spoken)

    async def _find(
        self, query: SearchQuery, spoken: Sequence[TimeRange]
    ) -> list[tuple[Message, Place]]:
        hits = None
        if self._index is not None and query.mode is not Mode.FULL_TEXT:
            limit = query.limit * (_PHRASE_MARGIN if '"' in query.text else 1)
            hits = await if_there(self._index.search(current_project(), query, spoken, limit))
        by_id, by_words = await self._store.matching(
            [hit.document_id for hit in hits or ()], query, spoken, waiting_only=hits is not None
        )
        return merge(
            hits or (),
            {message.id: message for message in by_id},
            [(message.id, message, score) for message, score in by_words],
        )


def _why(message: Message, place: Place, query: SearchQuery, spoken: Sequence[TimeRange]) -> str:
    """Tells in words why a message stands where it stands."""
    reasons = []
    if whose_words(query.text) is message.role:
        reasons.append(f"the question is about words of the {message.role.value}")
    reasons += [
        f"it was said at the time of {each.words!r}"
        for each in spoken
        if each.holds(message.create_time)
    ]
    return explained(place, reasons)
