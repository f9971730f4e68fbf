"""Dates and times in tool arguments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from strata.shared.search.time_expressions import zone_of
from strata.shared.tool_returns import TIME_FORMAT
from strata.tool_execution.domain.dates import end_of, start_of, time_ago
from strata.tool_execution.domain.tools import ToolError

BERLIN = ZoneInfo("Europe/Berlin")


def test_an_end_date_without_a_time_includes_its_whole_day() -> None:
    end = end_of("2026-03-01", "end_date", BERLIN)
    assert end == datetime(2026, 3, 2, tzinfo=BERLIN)


def test_an_end_time_is_inclusive() -> None:
    moment = datetime(2026, 3, 1, 10, 30, tzinfo=BERLIN)
    end = end_of("2026-03-01T10:30", "end_date", BERLIN)
    assert end is not None
    assert moment < end <= moment + timedelta(seconds=1)


def test_a_time_with_its_own_zone_keeps_it() -> None:
    assert start_of("2026-03-01T10:30:00+00:00", "start_date", BERLIN) == datetime(
        2026, 3, 1, 10, 30, tzinfo=UTC
    )


@pytest.mark.parametrize("name", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_dates_at_the_ends_of_the_calendar_are_accepted(name: str) -> None:
    timezone = ZoneInfo(name)
    for first in ("0001-01-01", "0001-01-01T00:00+14:00"):
        start = start_of(first, "start_date", timezone)
        assert start is not None
        Timestamp().FromDatetime(start)
        assert start <= datetime(1, 1, 2, tzinfo=UTC)
    for last in ("9999-12-31", "9999-12-31T23:59:59.999999", "9999-12-31T23:59-14:00"):
        end = end_of(last, "end_date", timezone)
        assert end is not None
        Timestamp().FromDatetime(end)
        assert end >= datetime(9999, 12, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    "moment", [datetime(2026, 11, 22, 0, 43, 14, tzinfo=zone) for zone in (UTC, BERLIN)]
)
def test_a_time_in_the_format_of_the_prompt_is_accepted(moment: datetime) -> None:
    shown = moment.strftime(TIME_FORMAT)
    assert start_of(shown, "start_date", ZoneInfo("Asia/Tokyo")) == moment


@pytest.mark.parametrize(
    "text", ["yesterday", "2026-13-22 12:43:14 AM UTC+0000", "2026-13-01", "", "1.3.2026"]
)
def test_other_formats_are_refused_with_the_valid_one(text: str) -> None:
    with pytest.raises(ToolError) as caught:
        start_of(text, "start_date", BERLIN)
    assert str(caught.value) == (
        f"Invalid start_date format: {text}. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s ago"), (59, "59s ago"), (60, "1m ago"), (7_200, "2h ago"), (90_000, "1d ago")],
)
def test_time_ago_is_rounded_to_the_largest_unit(seconds: int, text: str) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert time_ago(now - timedelta(seconds=seconds), now) == text


def test_an_unknown_zone_is_utc() -> None:
    assert zone_of("Mars/Olympus") == zone_of("") == ZoneInfo("UTC")
