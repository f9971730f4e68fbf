"""Times as people say them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.shared.search.time_expressions import TimeRange, just_before, time_ranges, zone_of

# A Saturday.
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LISBON = ZoneInfo("Europe/Lisbon")
HONOLULU = ZoneInfo("Pacific/Honolulu")


def days(text: str, now: datetime = NOW, zone: ZoneInfo = LISBON) -> list[tuple[str, str]]:
    """First and last day of every range, in the zone; "" where it is open."""
    ranges = []
    for time_range in time_ranges(text, now, zone):
        first = time_range.start.astimezone(zone).date().isoformat() if time_range.start else ""
        last = ""
        if time_range.end:
            last = (time_range.end.astimezone(zone).date() - timedelta(days=1)).isoformat()
        ranges.append((first, last))
    return ranges


def day(text: str) -> list[tuple[str, str]]:
    return [(text, text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("what did I say yesterday", day("2026-11-20")),
        ("the day before yesterday", day("2026-11-19")),
        ("what did we decide this morning?", day("2026-11-21")),
        ("Last night", day("2026-11-20")),
        ("three days ago", day("2026-11-18")),
        ("a couple of days ago", day("2026-11-19")),
        ("on Monday", day("2026-11-16")),
        ("last Saturday", day("2026-11-14")),
        ("on Saturday", day("2026-11-21")),
        ("last weekend", [("2026-11-14", "2026-11-15")]),
        ("this week", [("2026-11-16", "2026-11-22")]),
        ("last week", [("2026-11-09", "2026-11-15")]),
        ("two weeks ago", [("2026-11-04", "2026-11-10")]),
        ("last month", [("2026-10-01", "2026-10-31")]),
        ("a few months ago", [("2026-06-01", "2026-09-30")]),
        ("in the last two weeks", [("2026-11-07", "2026-11-21")]),
        ("over the past month", [("2026-10-21", "2026-11-21")]),
        ("last year", [("2025-01-01", "2025-12-31")]),
        ("2 years ago", [("2024-01-01", "2024-12-31")]),
        ("last March", [("2026-03-01", "2026-03-31")]),
        ("last November", [("2025-11-01", "2025-11-30")]),
        ("in November", [("2026-11-01", "2026-11-30")]),
        ("in December", [("2025-12-01", "2025-12-31")]),
        ("late February", [("2026-02-01", "2026-02-28")]),
        ("my notes of February 2024", [("2024-02-01", "2024-02-29")]),
        ("in 2024", [("2024-01-01", "2024-12-31")]),
        ("back in 2019", [("2019-01-01", "2019-12-31")]),
        ("last summer", [("2026-06-01", "2026-08-31")]),
        ("in winter", [("2025-12-01", "2026-02-28")]),
        ("in the fall of 2023", [("2023-09-01", "2023-11-30")]),
        ("since March", [("2026-03-01", "")]),
        ("before May 2025", [("", "2025-04-30")]),
        ("after 2020", [("2021-01-01", "")]),
        ("until June 3, 2025", [("", "2025-06-03")]),
        ("what happened on 2024-02-29?", day("2024-02-29")),
        ("the 3rd of June 2025", day("2025-06-03")),
        ("15 March", day("2026-03-15")),
        ("Dec 24", day("2025-12-24")),
        ("February 29", day("2024-02-29")),
        ("between March 29 and April 19", [("2026-03-29", "2026-04-19")]),
        ("from 2024-01-02 to 2024-02-03", [("2024-01-02", "2024-02-03")]),
        ("today and yesterday", [*day("2026-11-21"), *day("2026-11-20")]),
    ],
)
def test_words_are_read_as_people_mean_them(text: str, expected: list[tuple[str, str]]) -> None:
    assert days(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "may I march on",
        "version 2024 of the tool",
        "February 30",
        "9999 years ago",
        "he is 3 years old",
        "the weekend plan",
        "my March report",
    ],
)
def test_other_words_are_left_alone(text: str) -> None:
    assert days(text) == []


def test_the_day_is_that_of_the_person() -> None:
    # At noon in Greenwich it is two in the night of the same day in Honolulu.
    early = datetime(2026, 11, 21, 5, tzinfo=UTC)
    assert days("yesterday", early, LISBON) == day("2026-11-20")
    assert days("yesterday", early, HONOLULU) == day("2026-11-19")
    [time_range] = time_ranges("yesterday", early, HONOLULU)
    assert time_range.start == datetime(2026, 11, 19, 10, tzinfo=UTC)


def test_ranges_have_the_words_that_name_them() -> None:
    time_ranges_ = time_ranges("Since last March, and not before 2024", NOW, LISBON)
    assert [time_range.words for time_range in time_ranges_] == ["Since last March", "before 2024"]


@given(
    text=st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            ["last", "since", "between", "and", "March", "May", "2024", "31", "two", "weeks", "ago",
             "years", "9999", "on", "Monday", "of", "summer", "yesterday", "0001-01-01"]
        ),
        max_size=9,
    ).map(" ".join),
    today=st.dates(date(1971, 1, 1), date(9000, 1, 1)),
)  # fmt: skip
def test_no_text_fails_and_every_range_is_one(text: str, today: date) -> None:
    now = datetime(today.year, today.month, today.day, 23, tzinfo=UTC)
    for time_range in time_ranges(text, now, LISBON):
        assert time_range.words
        assert time_range.start is not None or time_range.end is not None
        if time_range.start is not None and time_range.end is not None:
            assert time_range.start < time_range.end


@given(st.dates(date(1990, 1, 1), date(2090, 12, 31)))
def test_a_month_without_a_year_is_the_newest_that_has_begun(today: date) -> None:
    now = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
    [time_range] = time_ranges("in March", now, ZoneInfo("UTC"))
    assert time_range.start is not None
    assert time_range.start <= now < time_range.start.replace(year=time_range.start.year + 1)


@pytest.mark.parametrize("year", [1, 9999])
@pytest.mark.parametrize("zone", [HONOLULU, ZoneInfo("Pacific/Kiritimati")])
@pytest.mark.parametrize("hour", [0, 23])
@pytest.mark.parametrize(
    "text", ["today", "yesterday", "last year", "two weeks ago", "since 1999-01-01"]
)
def test_the_ends_of_the_calendar_are_accepted(
    text: str, hour: int, zone: ZoneInfo, year: int
) -> None:
    edge = datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, hour, tzinfo=UTC)
    time_ranges(text, edge, zone)


def test_a_range_holds_its_first_moment_and_not_its_end() -> None:
    later = NOW + timedelta(hours=1)
    assert TimeRange("now", NOW, later).holds(NOW)
    assert not TimeRange("now", NOW, later).holds(later)
    assert TimeRange("since", NOW, None).holds(later)
    assert not TimeRange("before", None, NOW).holds(NOW)


def test_the_moment_before() -> None:
    assert just_before(NOW) == NOW - timedelta(microseconds=1)
    assert just_before(None) is None
    first = datetime.min.replace(tzinfo=UTC)
    assert just_before(first) == first


def test_an_unknown_zone_is_utc() -> None:
    assert zone_of("Europe/Lisbon") == LISBON
    for name in ("", "Nowhere/Land", "../etc/passwd", "a\0b"):
        assert zone_of(name) == ZoneInfo("UTC")
