"""Searches of passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from strata.archival.domain.passages import Filter, Passage, TagMatch


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

    def within(self, archive_ids: Sequence[str]) -> Filter:
        """Returns the conditions of the search as a filter on some archives."""
        return Filter(tuple(archive_ids), self.tags, self.tag_match, self.start_time, self.end_time)

    def left_out_by(self, passage: Passage) -> tuple[str, ...]:
        """Returns the names of the request's fields whose conditions a passage does not meet."""
        common_tags = set(self.tags) & set(passage.tags)
        enough = common_tags if self.tag_match is TagMatch.ANY else common_tags == set(self.tags)
        failed = {
            "tags": bool(self.tags) and not enough,
            "start_time": self.start_time is not None and passage.create_time < self.start_time,
            "end_time": self.end_time is not None and passage.create_time >= self.end_time,
        }
        return tuple(name for name, fails in failed.items() if fails)
