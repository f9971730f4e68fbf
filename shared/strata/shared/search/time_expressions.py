"""Recognises times that a question names: "yesterday", "last March", "vor zwei Wochen", "去年夏天".

An expression becomes a time range in the timezone of the user. Searches use it to rank texts from
that time higher. They must not use it as a filter: a question can also name the time of an event
("when is the trip in May?") that was talked about at another time. Times in the future are not
recognised, because no text is from there; a month without a year is the newest that has begun.

The words and rules of each language are in `time_grammar`. Six languages are read side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from strata.shared.search.folded_text import fold, normalise
from strata.shared.search.time_grammar.connecting import connected
from strata.shared.search.time_grammar.matching import expressions_in
from strata.shared.search.time_grammar.rules import Reference

MOST_RANGES = 8
"""A text that names more times is a document or a log, and no question about a time."""


LONGEST_TEXT = 4_000
"""Characters that are read; a document of a megabyte would take seconds."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time range and the words for it; times are UTC, None is open, `end` is exclusive."""

    words: str
    start: datetime | None
    end: datetime | None

    def holds(self, moment: datetime) -> bool:
        """Returns whether a moment lies in the range."""
        return (self.start is None or moment >= self.start) and (
            self.end is None or moment < self.end
        )


def time_ranges(text: str, now: datetime, timezone: ZoneInfo) -> tuple[TimeRange, ...]:
    """Returns the time ranges that a text names, in the order of the words.

    A date whose order of day and month is unknown has a range for each reading. A text that names
    more than `MOST_RANGES` has none. Of a long text the first `LONGEST_TEXT` characters are read.

    Args:
        text: A question or some words.
        now: The time that expressions such as "yesterday" refer to; time zone aware.
        timezone: Timezone of the author.
    """
    try:
        local_now = now.astimezone(timezone)
    except OverflowError:
        return ()  # at either end of the calendar
    text = normalise(text[:LONGEST_TEXT])
    folded = fold(text)
    reference = Reference(local_now, local_now.date(), timezone, folded)
    expressions = expressions_in(folded, reference)
    if sum(not expression.weak for expression in expressions) > 2 * MOST_RANGES:
        return ()  # two expressions make at least one range
    ranges = dict.fromkeys(
        TimeRange(
            text[named_range.begin : named_range.end].strip(), named_range.first, named_range.last
        )
        for named_range in connected(expressions, folded, reference)
        if named_range.first is None
        or named_range.last is None
        or named_range.first < named_range.last
    )
    return tuple(ranges) if len(ranges) <= MOST_RANGES else ()


def just_before(moment: datetime | None) -> datetime | None:
    """Returns the last moment before another, for interfaces with an inclusive end."""
    if moment is None or moment == datetime.min.replace(tzinfo=UTC):
        return moment  # nothing is earlier
    return moment - timedelta(microseconds=1)


def zone_of(name: str) -> ZoneInfo:
    """Returns the timezone of an IANA name; UTC if the name is empty or unknown."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")
