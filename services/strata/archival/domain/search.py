"""Searches of passages, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from strata.archival.domain.passages import Filter, Passage, TagMatch
from strata.shared.search.reranking import Report
from strata.shared.search.result_merge import BELOW_FLOOR, ResultRank
from strata.shared.search.time_expressions import TimeRange


@dataclass(frozen=True, slots=True)
class Search:
    """A search in the archives of an agent, or in given archives. ``end_time`` is exclusive.

    Attributes:
        explain: Explain each hit, and count what the conditions leave out.
        timezone: IANA name of the user's time zone.
        reference_time: The time that words like "yesterday" refer to; None for now.
    """

    query: str
    top_k: int
    agent_id: str = ""
    archive_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tag_match: TagMatch = TagMatch.ANY
    start_time: datetime | None = None
    end_time: datetime | None = None
    explain: bool = False
    timezone: str = ""
    reference_time: datetime | None = None

    @property
    def has_conditions(self) -> bool:
        """Whether it has conditions beside the archives."""
        return bool(self.tags or self.start_time or self.end_time)

    def within(self, archive_ids: Sequence[str]) -> Filter:
        """Returns the conditions of the search as a filter on some archives."""
        return Filter(tuple(archive_ids), self.tags, self.tag_match, self.start_time, self.end_time)

    def left_out_by(self, passage: Passage) -> tuple[str, ...]:
        """Returns the names of the request's fields whose conditions a passage does not meet."""
        held = set(self.tags) & set(passage.tags)
        enough = held if self.tag_match is TagMatch.ANY else held == set(self.tags)
        failed = {
            "tags": bool(self.tags) and not enough,
            "start_time": self.start_time is not None and passage.create_time < self.start_time,
            "end_time": self.end_time is not None and passage.create_time >= self.end_time,
        }
        return tuple(name for name, fails in failed.items() if fails)


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A found passage.

    Attributes:
        mode: ``hybrid``, ``vector`` or ``fts``: how it was found.
        score: The fused score, by which results are ordered.
        vector_rank: Rank by meaning, from 1; None if not found by meaning.
        fts_rank: Rank by words, from 1; None if not found by words.
        why: An explanation in words, with `explain`.
        rerank_score: The score of the reranker; None if it did not run.
        rerank_rank: Rank by that score, from 1; None if it did not run.
    """

    passage: Passage
    mode: str
    score: float
    vector_rank: int | None
    fts_rank: int | None
    why: str = ""
    rerank_score: float | None = None
    rerank_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A condition, and how many of the best matches it leaves out."""

    condition: str
    count: int
    best_passage_id: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search, best hits first."""

    hits: tuple[FoundPassage, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    spoken_times: tuple[TimeRange, ...] = ()
    reranking: Report | None = None


def exclusions(
    search: Search, matches: Iterable[tuple[Passage, ResultRank]]
) -> tuple[Exclusion, ...]:
    """Returns how many matches each condition of a search, and the score floor, leave out."""
    by_condition: dict[str, Exclusion] = {}
    for passage, place in matches:
        for name in (*search.left_out_by(passage), *((BELOW_FLOOR,) if place.weak else ())):
            known = by_condition.get(name, Exclusion(name, 0, passage.id))
            by_condition[name] = replace(known, count=known.count + 1)
    return tuple(by_condition.values())
