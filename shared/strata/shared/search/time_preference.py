"""Prefers texts from a time that the query names, and new texts."""

from __future__ import annotations

from collections.abc import Sequence

from strata.shared.search.query_tense import QueryTense, query_tense
from strata.shared.search.time_expressions import TimeRange
from strata.shared.search.vectors.index import Preference

WHEN_WEIGHT = 0.2
"""Bonus for texts that were stored at a time that the query names.

Meaning counts up to 1, and relevant texts score about 0.2 above irrelevant ones. The bonus decides
between similar scores and does not outweigh relevance. Values from 0.1 to 0.2 were equally good on
seven chats.
"""


def time_preferences(time_ranges: Sequence[TimeRange]) -> list[Preference]:
    """Returns the preferences for texts of the time ranges that a query names."""
    return [
        Preference(WHEN_WEIGHT, "create_time", since=time_range.start, until=time_range.end)
        for time_range in time_ranges
    ]


_NEWEST_SHARES = {QueryTense.PRESENT: 1.0, QueryTense.PRESENT_TENSE: 0.25}


def newest_share(query: str) -> float:
    """Returns the part of the bonus for new texts that applies to a query; see `fuse`.

    "Am I a smoker at the moment?" asks for the newest statement; "Am I a smoker?" probably too.
    """
    return _NEWEST_SHARES.get(query_tense(query), 0.0)
