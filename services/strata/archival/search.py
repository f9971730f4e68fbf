"""Search over passages: the index proposes, PostgreSQL disposes."""

from __future__ import annotations

from strata.archival.domain.passages import Filter, Found, Passage, Search
from strata.archival.domain.store import PassageStore
from strata.archival.index import PassageIndex
from strata.shared.context import current_project
from strata.shared.errors import UnavailableError
from strata.shared.logs import get_logger
from strata.shared.vectors import Hit

# A passage that waits for the index is found by words alone. Its score is set between
# those of the hits: a good match by words ranks with a fair one by meaning.
_PENDING_WEIGHT = 0.5
_log = get_logger(__name__)


class PassageSearch:
    """Finds passages by meaning and by words.

    The text, the tags and the conditions of each result are those of PostgreSQL, so that
    an index that lags behind can miss a passage but never show a wrong one. Without the
    index the words alone are searched.
    """

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
        hits = await self._hits(search, within)
        by_id, by_words = await self._store.matching(
            [hit.document_id for hit in hits or ()],
            search.query,
            within,
            search.top_k,
            all_words=hits is None,
        )
        found = _indexed(hits or [], by_id) + _by_words(by_words, {item.id for item in by_id})
        found.sort(key=lambda item: (-item.score, item.passage.id))
        return found[: search.top_k]

    async def _hits(self, search: Search, within: Filter) -> list[Hit] | None:
        try:
            return await self._index.search(current_project(), search.query, within, search.top_k)
        except UnavailableError as error:
            _log.warning("searching by words only", reason=error.reason.value)
            return None


def _indexed(hits: list[Hit], passages: list[Passage]) -> list[Found]:
    by_id = {passage.id: passage for passage in passages}
    return [
        Found(
            passage=by_id[hit.document_id],
            mode=_mode(hit),
            score=hit.score,
            vector_rank=hit.vector_rank,
            fts_rank=hit.fts_rank,
        )
        for hit in hits
        if hit.document_id in by_id
    ]


def _by_words(found: list[tuple[Passage, float]], known: set[str]) -> list[Found]:
    best = max((score for _, score in found), default=0.0) or 1.0
    return [
        Found(passage, "fts", _PENDING_WEIGHT * score / best, None, rank)
        for rank, (passage, score) in enumerate(found, start=1)
        if passage.id not in known
    ]


def _mode(hit: Hit) -> str:
    if hit.vector_rank is not None and hit.fts_rank is not None:
        return "hybrid"
    return "vector" if hit.vector_rank is not None else "fts"
