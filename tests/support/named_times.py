"""The time ranges that a text names, as days or as minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from strata.shared.search.time_expressions import time_ranges

# A Saturday.
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LISBON = ZoneInfo("Europe/Lisbon")

Days = list[tuple[str, str]]


def days(text: str, now: datetime = NOW, zone: ZoneInfo = LISBON) -> Days:
    """Returns the first and the last day of every range in the zone; "" for an open end."""
    ranges = []
    for time_range in time_ranges(text, now, zone):
        first = time_range.start.astimezone(zone).date().isoformat() if time_range.start else ""
        last = ""
        if time_range.end:
            last = (time_range.end.astimezone(zone).date() - timedelta(days=1)).isoformat()
        ranges.append((first, last))
    return ranges


def hours(text: str, now: datetime = NOW, zone: ZoneInfo = LISBON) -> Days:
    """Returns the first and the last minute of every range in the zone."""
    return [
        (_minute(time_range.start, zone), _minute(time_range.end, zone))
        for time_range in time_ranges(text, now, zone)
    ]


def _minute(moment: datetime | None, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M") if moment else ""


def day(text: str) -> Days:
    """Returns the range of one day."""
    return [(text, text)]
