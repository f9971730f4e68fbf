"""Searches messages: candidates from the index, checked against PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from strata.recall.domain.messages import Message
from strata.recall.domain.query_roles import query_role
from strata.recall.domain.search import Mode, SearchQuery, SearchStore
from strata.recall.domain.search_text import searchable_text
from strata.recall.domain.speakers import named_speakers
from strata.recall.search.index import MessageIndex
from strata.shared.clock import Clock
from strata.shared.context import current_project
from strata.shared.messages import MessageRole
from strata.shared.record_fields import replace
from strata.shared.search.outdated import DatedText
from strata.shared.search.pipeline import SearchExplanation, SearchPipeline
from strata.shared.search.reranking.result_order import Reranking
from strata.shared.search.result_merge import DatabaseSnapshot
from strata.shared.search.results import SearchResult
from strata.shared.search.time_expressions import TimeRange
from strata.shared.search.vectors import Hit, StartGate
from strata.shared.telemetry import Histogram

# Factor for queries with phrases, since PostgreSQL drops candidates without the phrase.
_PHRASE_MARGIN = 5


class MessageSearch:
    """Searches messages by meaning and by words.

    Args:
        store: Stores the messages.
        index: The index; None to search only by words.
        clock: The time that words like "yesterday" refer to.
        reranking: Reorders the best results; None keeps the order of the fusion.
        seconds: Observes the time of each search; None for no metric.
    """

    def __init__(
        self,
        store: SearchStore,
        index: MessageIndex | None,
        clock: Clock,
        reranking: Reranking | None = None,
        seconds: Histogram | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._pipeline = SearchPipeline(clock, reranking, seconds)

    async def search(self, query: SearchQuery) -> SearchResult[Message]:
        """Returns the best messages, best first.

        Raises:
            NotFoundError: ``AGENT_NOT_FOUND``, ``CONVERSATION_NOT_FOUND``.
        """
        times = self._pipeline.times(query.text, query.timezone, query.reference_time)
        speakers = await self._named_speakers(query)
        explanation = None
        if query.explain:
            everything = _Messages(
                self._store, self._index, query.without_conditions(), times, speakers
            )
            explanation = SearchExplanation(everything, query.left_out_by)
        result = await self._pipeline.search(
            query.text,
            query.limit,
            _Messages(self._store, self._index, query, times, speakers),
            times,
            explanation=explanation,
            # A full-text search keeps the order of the search by words.
            rerank=query.mode is not Mode.FULL_TEXT,
        )
        if not result.hits and (query.conversation_id or not self._reads_speakers(query)):
            # Checked only now, so that a search with results costs no further statement.
            await self._store.check_agent(query.agent_id, query.conversation_id)
        if not query.neighbours:
            return result
        # Read even without hits, so that the cost of a search does not depend on its results.
        around = await self._store.around(
            [hit.item for hit in result.hits],
            query.neighbours,
            exclude_run_id=query.exclude_run_id,
        )
        hits = tuple(replace(hit, neighbours=around.get(hit.item.id, ())) for hit in result.hits)
        return replace(result, hits=hits)

    async def _named_speakers(self, query: SearchQuery) -> tuple[str, ...]:
        if not self._reads_speakers(query):
            return ()
        return named_speakers(query.text, await self._store.speakers(query.agent_id))

    def _reads_speakers(self, query: SearchQuery) -> bool:
        return self._index is not None and query.mode is not Mode.FULL_TEXT


class _Messages:
    """The messages that meet the conditions of a query, as `ExplainedSource`."""

    def __init__(
        self,
        store: SearchStore,
        index: MessageIndex | None,
        query: SearchQuery,
        times: Sequence[TimeRange],
        speakers: Sequence[str],
    ) -> None:
        self._store = store
        self._index = index
        self._query = query
        self._times = times
        self._speakers = speakers

    @property
    def has_index(self) -> bool:
        return self._index is not None and self._query.mode is not Mode.FULL_TEXT

    async def has_unknown_words(self) -> bool:
        if self._index is None or self._query.mode is not Mode.HYBRID:
            return False
        return await self._index.has_unknown_words(self._query.text)

    def open_snapshot(
        self, limit: int, *, all_words: bool
    ) -> AbstractAsyncContextManager[DatabaseSnapshot[Message]]:
        query = replace(self._query, limit=limit)
        return self._store.open_snapshot(query, self._times, all_words=all_words)

    async def search_index(self, limit: int, *, weak: bool, after: StartGate) -> list[Hit]:
        if self._index is None:
            return []
        margin = _PHRASE_MARGIN if '"' in self._query.text else 1
        return await self._index.search(
            current_project(),
            self._query,
            self._times,
            limit * margin,
            speakers=self._speakers,
            weak=weak,
            after=after,
        )

    async def by_words(self, limit: int) -> Sequence[tuple[Message, float]]:
        return await self._store.by_words(replace(self._query, limit=limit), self._times)

    def id_of(self, message: Message) -> str:
        return message.id

    def bonus(self, message: Message) -> float:
        # The store adds the bonus to its scores.
        return 0.0

    def text_of(self, message: Message) -> str:
        return searchable_text(message)

    def dated_text(self, message: Message) -> DatedText | None:
        # An agent repeats what others say, so its messages are not compared.
        if message.role is not MessageRole.USER:
            return None
        time = message.create_time.timestamp()
        return DatedText(message.id, searchable_text(message), message.name, time)

    def preferences_met(self, message: Message) -> list[str]:
        reasons = []
        if query_role(self._query.text) is message.role:
            reasons.append(f"the question is about words of the {message.role.value}")
        if message.role is MessageRole.USER and message.name in self._speakers:
            reasons.append(f"the question names {message.name!r}, who wrote it")
        return reasons + [
            f"it was said at the time of {time_range.words!r}"
            for time_range in self._times
            if time_range.holds(message.create_time)
        ]
