"""The results of a search: hits, and the matches that its conditions excluded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from strata.shared.search.outdated import Outdated
from strata.shared.search.reranking import RerankingReport
from strata.shared.search.result_merge import BELOW_FLOOR, ResultRank
from strata.shared.search.time_expressions import TimeRange

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class SearchHit(Generic[_Item]):
    """A found text: a message or a passage.

    Attributes:
        item: The text.
        mode: ``hybrid``, ``vector`` or ``fts``: how it was found.
        score: The fused score, by which hits are ordered.
        vector_rank: Rank by meaning, from 1; None if not found by meaning.
        fts_rank: Rank by words, from 1; None if not found by words.
        why: An explanation in words, if the search asks for it.
        rerank_score: The score of the reranker; None if it did not run.
        rerank_rank: Rank by that score, from 1; None if it did not run.
        neighbours: The texts around it, in order, if the search asks for them.
        outdated: The newer statement that seems to replace it; None if there is none.
    """

    item: _Item
    mode: str
    score: float
    vector_rank: int | None
    fts_rank: int | None
    why: str = ""
    rerank_score: float | None = None
    rerank_rank: int | None = None
    neighbours: tuple[_Item, ...] = ()
    outdated: Outdated | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A condition, how many of the best matches it leaves out, and the id of the best of them."""

    condition: str
    count: int
    best_id: str


@dataclass(frozen=True, slots=True)
class SearchResult(Generic[_Item]):
    """The result of a search, best hits first.

    Attributes:
        hits: The hits.
        exclusions: The results that conditions excluded, if the search requests explanations.
        time_ranges: The times that the query names.
        reranking: The report of the reranking; None if nothing was reranked.
    """

    hits: tuple[SearchHit[_Item], ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    time_ranges: tuple[TimeRange, ...] = ()
    reranking: RerankingReport | None = None


def exclusions(
    left_out_by: Callable[[_Item], Sequence[str]],
    matches: Iterable[tuple[_Item, ResultRank]],
    id_of: Callable[[_Item], str],
) -> tuple[Exclusion, ...]:
    """Returns how many matches each condition of a search, and the score floor, leave out.

    Args:
        left_out_by: Returns the names of the conditions that a match does not meet.
        matches: The matches without the conditions, best first.
        id_of: Returns the id of a match.
    """
    by_condition: dict[str, Exclusion] = {}
    for item, place in matches:
        for name in (*left_out_by(item), *((BELOW_FLOOR,) if place.weak else ())):
            exclusion = by_condition.get(name, Exclusion(name, 0, id_of(item)))
            by_condition[name] = replace(exclusion, count=exclusion.count + 1)
    return tuple(by_condition.values())
