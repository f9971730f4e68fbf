"""Searching passages: what is asked, and what is answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from strata.archival.domain.passages import Filter, Passage, TagMatch
from strata.shared.reranking import Report
from strata.shared.time_expressions import TimeRange
from strata.shared.vectors.result_merge import BELOW_FLOOR, Place


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for; either an agent or archives say where. ``end_time`` is exclusive.

    Attributes:
        explain: Tell why each hit was found, and what the conditions leave out.
        timezone: IANA name, of the person who asks.
        reference_time: What words like "yesterday" count from; None is now.
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
        """Whether it leaves out any of the archives' passages."""
        return bool(self.tags or self.start_time or self.end_time)

    def within(self, archive_ids: Sequence[str]) -> Filter:
        """Returns the conditions of the search over known archives."""
        return Filter(tuple(archive_ids), self.tags, self.tag_match, self.start_time, self.end_time)

    def left_out_by(self, passage: Passage) -> tuple[str, ...]:
        """Returns the conditions, as fields of the request, that a passage does not meet."""
        held = set(self.tags) & set(passage.tags)
        enough = held if self.tag_match is TagMatch.ANY else held == set(self.tags)
        failed = {
            "tags": bool(self.tags) and not enough,
            "start_time": self.start_time is not None and passage.create_time < self.start_time,
            "end_time": self.end_time is not None and passage.create_time >= self.end_time,
        }
        return tuple(name for name, fails in failed.items() if fails)


@dataclass(frozen=True, slots=True)
class Found:
    """A found passage.

    Attributes:
        mode: ``hybrid``, ``vector`` or ``fts``: which arms found it.
        score: What the results are ordered by.
        vector_rank: Place by meaning, from 1; None if not found so.
        fts_rank: Place by words, from 1; None if not found so.
        why: The same in words, when asked for.
        rerank_score: What the reranker gave it; None if it was not asked.
        rerank_rank: Place by that, from 1; None likewise.
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
    """A condition, and what of the best matches it leaves out."""

    condition: str
    count: int
    best_passage_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search gives, best first."""

    hits: tuple[Found, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    spoken_times: tuple[TimeRange, ...] = ()
    reranking: Report | None = None


def exclusions(search: Search, matches: Iterable[tuple[Passage, Place]]) -> tuple[Exclusion, ...]:
    """Returns what the conditions of a search, and the floor, leave out of matches, best first."""
    found: dict[str, Exclusion] = {}
    for passage, place in matches:
        for name in (*search.left_out_by(passage), *((BELOW_FLOOR,) if place.weak else ())):
            known = found.get(name, Exclusion(name, 0, passage.id))
            found[name] = replace(known, count=known.count + 1)
    return tuple(found.values())
