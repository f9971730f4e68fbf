"""Time expressions in queries."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from named_times import LISBON, NOW, Days, day, days, hours
from strata.shared.search.time_expressions import (
    LONGEST_TEXT,
    MOST_RANGES,
    TimeRange,
    just_before,
    time_ranges,
    zone_of,
)

HONOLULU = ZoneInfo("Pacific/Honolulu")
NEW_YORK = ZoneInfo("America/New_York")
SYDNEY = ZoneInfo("Australia/Sydney")


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
        ("between May and July", [("2026-05-01", "2026-07-31")]),
        ("from May to July", [("2026-05-01", "2026-07-31")]),
        ("between May and July 2024", [("2024-05-01", "2024-07-31")]),
        ("between November and February", [("2025-11-01", "2026-02-28")]),
        ("from December 2024 to March", [("2024-12-01", "2025-03-31")]),
        ("from last Monday to Friday", [("2026-11-16", "2026-11-20")]),
        ("from last Friday until yesterday", [("2026-11-20", "2026-11-20")]),
        ("between 2019 and 2021", [("2019-01-01", "2021-12-31")]),
        ("2019\u20132021", [("2019-01-01", "2021-12-31")]),
        ("What did I do May-July?", [("2026-05-01", "2026-07-31")]),
        ("from Q1 to Q2 2025", [("2025-01-01", "2025-06-30")]),
        ("from 3 to 7 March 2025", [("2025-03-03", "2025-03-07")]),
        ("March 3-7", [("2026-03-03", "2026-03-07")]),
        ("between May 3 and 10", [("2026-05-03", "2026-05-10")]),
        ("before June", [("", "2026-05-31")]),
        ("until Easter", [("", "2026-04-06")]),
        ("until the end of May", [("", "2026-05-31")]),
        ("since the beginning of 2025", [("2025-01-01", "")]),
        ("from March onwards", [("2026-03-01", "")]),
        ("prior to 2025", [("", "2024-12-31")]),
        ("since Monday", [("2026-11-16", "")]),
        ("since the fall", [("2026-09-01", "")]),
        ("after November", [("2025-12-01", "")]),
        ("after last weekend", [("2026-11-16", "")]),
        ("last Christmas", [("2025-12-24", "2025-12-26")]),
        ("two Christmases ago", [("2024-12-24", "2024-12-26")]),
        ("on Christmas Eve", day("2025-12-24")),
        ("Easter 2025", [("2025-04-18", "2025-04-21")]),
        ("last Thanksgiving", day("2025-11-27")),
        ("last New Year's Eve", day("2025-12-31")),
        ("two Fridays ago", day("2026-11-13")),
        ("two Saturdays ago", day("2026-11-07")),
        ("the Friday before last", day("2026-11-13")),
        ("Friday last week", day("2026-11-13")),
        ("last week on Tuesday", day("2026-11-10")),
        ("this Friday", day("2026-11-20")),
        ("this Sunday", []),
        ("the week before last", [("2026-11-02", "2026-11-08")]),
        ("the month before last", [("2026-09-01", "2026-09-30")]),
        ("two weekends ago", [("2026-11-07", "2026-11-08")]),
        ("two summers ago", [("2025-06-01", "2025-08-31")]),
        ("in Q2", [("2026-04-01", "2026-06-30")]),
        ("Q2 2025", [("2025-04-01", "2025-06-30")]),
        ("in the third quarter of 2024", [("2024-07-01", "2024-09-30")]),
        ("last quarter", [("2026-07-01", "2026-09-30")]),
        ("what have I eaten recently?", [("2026-10-22", "2026-11-21")]),
        ("lately", [("2026-10-22", "2026-11-21")]),
        ("the other day", [("2026-11-07", "2026-11-21")]),
        ("a couple of weeks ago", [("2026-11-04", "2026-11-10")]),
        ("a few weeks ago", [("2026-10-14", "2026-11-10")]),
        ("several days ago", [("2026-11-16", "2026-11-19")]),
        ("half a year ago", [("2026-05-01", "2026-05-31")]),
        ("March 2026", [("2026-03-01", "2026-03-31")]),
        ("in 2026-03", [("2026-03-01", "2026-03-31")]),
        ("in May last year", [("2025-05-01", "2025-05-31")]),
        ("last year in May", [("2025-05-01", "2025-05-31")]),
        ("in May next year", []),
        ("this Christmas", []),
        ("in early March 2025", [("2025-03-01", "2025-03-31")]),
        ("at the end of last year", [("2025-01-01", "2025-12-31")]),
        ("Friday two weeks ago", day("2026-11-06")),
        ("the first half of 2025", [("2025-01-01", "2025-06-30")]),
        ("during the summer of 2023", [("2023-06-01", "2023-08-31")]),
        ("in the 3rd week of May", [("2026-05-01", "2026-05-31")]),
        ("on the 3rd of last month", day("2026-10-03")),
        ("on Tuesday, March 3", day("2026-03-03")),
        ("What did I do Friday night?", day("2026-11-20")),
        ("two or three weeks ago", [("2026-10-28", "2026-11-10")]),
        ("1.5 years ago", []),
        ("in May or June", [("2026-05-01", "2026-05-31"), ("2026-06-01", "2026-06-30")]),
        ("since 3 to 7 May", [("2026-05-03", "2026-05-07")]),
        ("the last two weeks of May", [("2026-05-01", "2026-05-31")]),
    ],
)
def test_time_expressions_are_recognised(text: str, expected: Days) -> None:
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
        "before Monday",
        "from Monday to Friday",
        "after the fall",
        "in 2000 words",
        "between 1900 and 2000 calories",
        "CVE-2026-03",
        "next Christmas",
    ],
)
def test_other_words_are_ignored(text: str) -> None:
    assert days(text) == []


def test_the_day_is_that_of_the_person() -> None:
    # At noon in Greenwich it is two in the night of the same day in Honolulu.
    early = datetime(2026, 11, 21, 5, tzinfo=UTC)
    assert days("yesterday", early, LISBON) == day("2026-11-20")
    assert days("yesterday", early, HONOLULU) == day("2026-11-19")
    [time_range] = time_ranges("yesterday", early, HONOLULU)
    assert time_range.start == datetime(2026, 11, 19, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at 5 pm yesterday", ("2026-11-20 16:00", "2026-11-20 18:00")),
        ("yesterday at 17:30", ("2026-11-20 16:30", "2026-11-20 18:30")),
        ("last Friday at noon", ("2026-11-20 11:00", "2026-11-20 13:00")),
        ("on May 3 at 5:30 p.m.", ("2026-05-03 16:30", "2026-05-03 18:30")),
        ("on 2026-03-10 at 12 am", ("2026-03-09 23:00", "2026-03-10 01:00")),
        ("at 3 am last night", ("2026-11-21 02:00", "2026-11-21 04:00")),
        ("at 25:00 yesterday", ("2026-11-20 00:00", "2026-11-21 00:00")),
        ("two hours ago", ("2026-11-21 09:00", "2026-11-21 11:00")),
        ("10 minutes ago", ("2026-11-21 11:40", "2026-11-21 12:00")),
        ("in the last 24 hours", ("2026-11-20 12:00", "2026-11-21 13:00")),
    ],
)
def test_a_time_of_day_narrows_the_day_beside_it(text: str, expected: tuple[str, str]) -> None:
    assert hours(text) == [expected]


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("yesterday", (2024, 3, 1), day("2024-02-29")),
        ("a month ago", (2026, 3, 31), [("2026-02-01", "2026-02-28")]),
        ("over the past month", (2026, 3, 31), [("2026-02-28", "2026-03-31")]),
        ("last month", (2026, 1, 15), [("2025-12-01", "2025-12-31")]),
        ("last week", (2026, 1, 1), [("2025-12-22", "2025-12-28")]),
        ("this week", (2026, 11, 22), [("2026-11-16", "2026-11-22")]),
        ("this week", (2026, 11, 23), [("2026-11-23", "2026-11-29")]),
        ("last weekend", (2026, 11, 23), [("2026-11-21", "2026-11-22")]),
        ("last Christmas", (2026, 12, 25), [("2025-12-24", "2025-12-26")]),
        ("last Christmas", (2026, 12, 27), [("2026-12-24", "2026-12-26")]),
        ("last winter", (2026, 1, 15), [("2024-12-01", "2025-02-28")]),
        ("this winter", (2026, 1, 15), [("2025-12-01", "2026-02-28")]),
        ("this summer", (2026, 3, 1), []),
        ("after the summer", (2026, 7, 1), [("2025-09-01", "")]),
        ("between May and July", (2026, 6, 15), [("2025-05-01", "2025-07-31")]),
        ("last quarter", (2026, 2, 1), [("2025-10-01", "2025-12-31")]),
        ("since February 29", (2026, 3, 1), [("2024-02-29", "")]),
    ],
)
def test_times_near_the_borders_of_the_calendar_are_recognised(
    text: str, now: tuple[int, int, int], expected: Days
) -> None:
    assert days(text, datetime(*now, 12, tzinfo=UTC)) == expected


@pytest.mark.parametrize(
    ("date_of_change", "length"), [((2026, 3, 30), 23), ((2026, 10, 26), 25), ((2026, 6, 2), 24)]
)
def test_a_day_is_as_long_as_the_clocks_make_it(
    date_of_change: tuple[int, int, int], length: int
) -> None:
    [time_range] = time_ranges("yesterday", datetime(*date_of_change, 12, tzinfo=UTC), LISBON)
    assert time_range.start is not None
    assert time_range.end is not None
    assert time_range.end - time_range.start == timedelta(hours=length)


def test_hours_are_counted_across_a_change_of_the_clocks() -> None:
    after_change = datetime(2026, 3, 8, 12, tzinfo=UTC)  # the clocks changed at 7:00 UTC
    [time_range] = time_ranges("10 hours ago", after_change, NEW_YORK)
    assert time_range.start == after_change - timedelta(hours=11)
    assert time_range.end == after_change - timedelta(hours=9)


def test_a_day_that_a_zone_skipped_has_no_range() -> None:
    apia = ZoneInfo("Pacific/Apia")
    assert days("2011-12-30", NOW, apia) == []
    assert days("2011-12-29", NOW, apia) != []


def test_seasons_are_those_of_the_hemisphere() -> None:
    assert days("last summer", NOW, SYDNEY) == [("2025-12-01", "2026-02-28")]
    assert days("last winter", NOW, SYDNEY) == [("2026-06-01", "2026-08-31")]
    buenos_aires = ZoneInfo("America/Buenos_Aires")
    assert days("el verano pasado", NOW, buenos_aires) == [("2025-12-01", "2026-02-28")]


def test_a_text_with_many_times_does_not_ask_about_a_time() -> None:
    dates = [f"2026-01-{number:02}" for number in range(1, MOST_RANGES + 2)]
    assert len(days(" and ".join(dates[:-1]))) == MOST_RANGES
    assert days(" and ".join(dates)) == []
    assert days("last Friday and 2024-01-02 " * 1000) == []


def test_only_the_beginning_of_a_long_text_is_searched() -> None:
    beginning = "x" * (LONGEST_TEXT - 10)
    assert days(f"{beginning} yesterday") == day("2026-11-20")
    assert days(f"{beginning}. Yesterday") == []


def test_the_same_time_is_named_once() -> None:
    assert days("yesterday, I mean yesterday") == [*day("2026-11-20"), *day("2026-11-20")][:1]


def test_ranges_have_the_words_that_name_them() -> None:
    time_ranges_ = time_ranges("Since last March, and not before 2024", NOW, LISBON)
    assert [time_range.words for time_range in time_ranges_] == ["Since last March", "before 2024"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Was war VORGESTERN?", "VORGESTERN"),
        (
            "Qu\u2019ai-je fait l\u2019e\u0301te\u0301 dernier\u00a0?",
            "l\u2019\u00e9t\u00e9 dernier",
        ),
        ("Wo habe ich 2024 gewohnt?", "2024"),
        ("\u4e0a\u9031\u4e94\u6211\u5011\u8aaa\u4e86\u4ec0\u9ebc", "\u4e0a\u9031\u4e94"),
        ("\uff13\u65e5\u524d\u306e\u8a71", "\uff13\u65e5\u524d"),
    ],
)
def test_a_range_quotes_the_words_of_the_text(text: str, words: str) -> None:
    [time_range] = time_ranges(text, NOW, LISBON)
    assert time_range.words == words


@given(
    text=st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            ["last", "since", "between", "and", "March", "May", "2024", "31", "two", "weeks", "ago",
             "years", "9999", "on", "Monday", "of", "summer", "yesterday", "0001-01-01", "Easter",
             "Q2", "10/03/2026", "at", "5", "pm", "hours", "-", "before", "after", "this", "the",
             "seit", "vor", "letzten", "Freitag", "bis", "zwischen", "und", "uhr", "vorletzte",
             "depuis", "il y a", "deux", "vendredi", "dernier", "mois", "entre", "et", "hace",
             "tres", "d\u00edas", "verano", "pasado", "desde", "hasta", "mayo"]
        ),
        max_size=9,
    ).map(" ".join)
    | st.lists(
        st.sampled_from(
            [*"去今前年月日号上下个周週一三十天夏の先間からまで到和之后以来3点時半", "2024", "9999"]
        ),
        max_size=12,
    ).map("".join),
    today=st.dates(date(1971, 1, 1), date(9000, 1, 1)),
)  # fmt: skip
def test_any_text_gives_valid_ranges(text: str, today: date) -> None:
    now = datetime(today.year, today.month, today.day, 23, tzinfo=UTC)
    for time_range in time_ranges(text, now, LISBON):
        assert time_range.words
        assert time_range.start is not None or time_range.end is not None
        if time_range.start is not None and time_range.end is not None:
            assert time_range.start < time_range.end


@given(st.dates(date(1990, 1, 1), date(2090, 12, 31)))
def test_a_month_without_a_year_is_the_most_recent_one(today: date) -> None:
    now = datetime(today.year, today.month, today.day, 12, tzinfo=UTC)
    [time_range] = time_ranges("in March", now, ZoneInfo("UTC"))
    assert time_range.start is not None
    assert time_range.start <= now < time_range.start.replace(year=time_range.start.year + 1)


@pytest.mark.parametrize("year", [1, 9999])
@pytest.mark.parametrize("zone", [HONOLULU, ZoneInfo("Pacific/Kiritimati")])
@pytest.mark.parametrize("hour", [0, 23])
@pytest.mark.parametrize(
    "text",
    [
        "today",
        "yesterday",
        "last year",
        "two weeks ago",
        "since 1999-01-01",
        "after Monday",
        "after New Year's",
        "between yesterday and Friday",
        "from May to yesterday",
        "between last year and March",
        "last night at 3 am",
        "5 hours ago",
        "the 3rd of last month",
    ],
)
def test_the_ends_of_the_calendar_are_accepted(
    text: str, hour: int, zone: ZoneInfo, year: int
) -> None:
    edge = datetime(year, 1 if year == 1 else 12, 1 if year == 1 else 31, hour, tzinfo=UTC)
    time_ranges(text, edge, zone)


def test_a_range_includes_its_start_and_excludes_its_end() -> None:
    later = NOW + timedelta(hours=1)
    assert TimeRange("now", NOW, later).holds(NOW)
    assert not TimeRange("now", NOW, later).holds(later)
    assert TimeRange("since", NOW, None).holds(later)
    assert not TimeRange("before", None, NOW).holds(NOW)


def test_the_preceding_moment_is_a_microsecond_earlier() -> None:
    assert just_before(NOW) == NOW - timedelta(microseconds=1)
    assert just_before(None) is None
    first = datetime.min.replace(tzinfo=UTC)
    assert just_before(first) == first


def test_an_unknown_zone_is_utc() -> None:
    assert zone_of("Europe/Lisbon") == LISBON
    for name in ("", "Nowhere/Land", "../etc/passwd", "a\0b"):
        assert zone_of(name) == ZoneInfo("UTC")
