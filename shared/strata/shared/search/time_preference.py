"""Preference for texts of a time that the query names."""

from __future__ import annotations

from collections.abc import Sequence

from strata.shared.search.time_expressions import TimeRange
from strata.shared.search.vectors.index import Preference

WHEN_WEIGHT = 0.2
"""Bonus for texts that were stored at a time that the query names.

Meaning counts up to 1, and relevant texts score about 0.2 above irrelevant ones. The bonus decides
between similar scores and does not outweigh relevance. Values from 0.1 to 0.2 were equally good on
seven chats.
"""


def time_preferences(spoken: Sequence[TimeRange]) -> list[Preference]:
    """Returns the preferences for texts of the time ranges that a query names."""
    return [
        Preference(WHEN_WEIGHT, "create_time", since=time_range.start, until=time_range.end)
        for time_range in spoken
    ]
