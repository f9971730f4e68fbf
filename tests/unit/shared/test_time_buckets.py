"""Buckets of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.time_buckets import bucket_count, bucket_start, bucket_starts

MOMENTS = st.datetimes(timezones=st.just(UTC))


@given(MOMENTS, st.integers(60, 366 * 86_400), st.floats(0, 300))
def test_buckets_cover_a_range_without_gaps(start: datetime, seconds: int, lengths: float) -> None:
    length = timedelta(seconds=seconds)
    try:
        end = start + lengths * length
    except OverflowError:
        end = datetime.max.replace(tzinfo=UTC)
    starts = bucket_starts(start, end, length)
    assert len(starts) == bucket_count(start, end, length) <= 302
    if start >= end:
        assert starts == []
        return
    assert starts[0] == start
    # A sum could be later than the last time that a datetime can hold.
    assert timedelta(0) < end - starts[-1] <= length
    assert all(bucket_start(moment, length) == moment for moment in starts[1:])
    assert all(later - earlier == length for earlier, later in pairwise(starts[1:]))
    assert all(later - earlier <= length for earlier, later in pairwise(starts[:2]))


@pytest.mark.parametrize(
    ("length", "start"),
    [
        (timedelta(hours=1), datetime(2026, 11, 27, 9, tzinfo=UTC)),
        (timedelta(hours=12), datetime(2026, 11, 27, tzinfo=UTC)),
        (timedelta(days=1), datetime(2026, 11, 27, tzinfo=UTC)),
        (timedelta(weeks=1), datetime(2026, 11, 23, tzinfo=UTC)),
    ],
)
def test_buckets_start_at_hours_days_and_mondays_in_utc(length: timedelta, start: datetime) -> None:
    moment = datetime.fromisoformat("2026-11-27T11:30:00+02:00")
    assert bucket_start(moment, length) == start
    assert bucket_start(start, length) == start
