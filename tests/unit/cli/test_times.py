"""Points in time in the notation of command line options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from strata.cli.failures import UsageError
from strata.cli.times import parse_end, parse_time, timestamp_of

NOW = datetime(2026, 7, 30, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("30s", timedelta(seconds=30)),
        ("5 min", timedelta(minutes=5)),
        ("2h ago", timedelta(hours=2)),
        ("3d", timedelta(days=3)),
        ("1w", timedelta(weeks=1)),
    ],
)
def test_relative_times_are_subtracted_from_now(text: str, span: timedelta) -> None:
    assert parse_time(text, NOW) == NOW - span


def test_a_time_keeps_its_zone_and_otherwise_has_the_local_one() -> None:
    assert parse_time("2026-07-30T14:00:00Z") == datetime(2026, 7, 30, 14, tzinfo=UTC)
    local = datetime(2026, 7, 30, 9, 5).astimezone()
    assert parse_time("2026-07-30 09:05") == local
    assert parse_time("9:05", NOW) == parse_time("09:05:00", NOW)
    today = NOW.astimezone()
    assert parse_time("9:05", NOW) == today.replace(hour=9, minute=5)


@pytest.mark.parametrize("text", ["yesterday", "", "25:00", "2026-13-01", "999999w", "-1h"])
def test_any_other_text_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        parse_time(text, NOW)


def test_an_empty_text_has_no_timestamp() -> None:
    assert timestamp_of("") is None
    stamp = timestamp_of("2026-07-30T14:00:00.25Z")
    assert stamp is not None
    assert (stamp.seconds, stamp.nanos) == (1785420000, 250_000_000)


def test_an_invalid_end_time_is_refused_with_the_valid_forms() -> None:
    with pytest.raises(UsageError, match=r"is not a time\..* from now"):
        parse_end("banana", NOW)
