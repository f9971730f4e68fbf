"""Buckets: parts of a time range that are equally long and begin at fixed times of UTC. Pure.

They are counted from a Monday, so that buckets of a week begin on Mondays, and buckets of an hour
or a day begin with the hours and days of UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_ORIGIN = datetime(1970, 1, 5, tzinfo=UTC)


def bucket_start(moment: datetime, length: timedelta) -> datetime:
    """Returns the start of the bucket that a time lies in.

    Raises:
        OverflowError: It lies before the year 1.
    """
    return _start(_number(moment, length), length)


def bucket_count(start: datetime, end: datetime, length: timedelta) -> int:
    """Returns the number of buckets that a range touches; its end is exclusive."""
    if start >= end:
        return 0
    return -((_ORIGIN - end) // length) - _number(start, length)


def bucket_starts(start: datetime, end: datetime, length: timedelta) -> list[datetime]:
    """Returns the starts of the buckets that a range touches; the first is the start of the range.

    Args:
        start: Start of the range.
        end: End of the range, exclusive.
        length: Length of a bucket.
    """
    count, first = bucket_count(start, end, length), _number(start, length)
    return [start, *(_start(first + index, length) for index in range(1, count))][:count]


def _number(moment: datetime, length: timedelta) -> int:
    return (moment - _ORIGIN) // length


def _start(number: int, length: timedelta) -> datetime:
    return _ORIGIN + number * length
