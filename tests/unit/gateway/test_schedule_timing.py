"""Due times of schedules: cron expressions, time zones, daylight saving, stopped gateways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.gateway.schedules.timing import Timing, TimingError

MINUTE = timedelta(minutes=1)
NOW = datetime(2026, 1, 15, 12, 0, 30, tzinfo=UTC)
BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def first(cron: str, after: str, count: int, zone: str = BERLIN) -> list[datetime]:
    return list(islice(Timing(cron, zone).ticks_after(at(after)), count))


def test_times_of_day_are_local_in_summer_and_winter() -> None:
    assert first("30 9 * * *", "2026-01-15T00:00Z", 1) == [at("2026-01-15T08:30Z")]
    assert first("30 9 * * *", "2026-07-15T00:00Z", 1) == [at("2026-07-15T07:30Z")]


def test_a_skipped_local_time_becomes_the_first_minute_after_the_gap() -> None:
    # On 2026-03-29 the clocks of Berlin go from 02:00 to 03:00.
    assert first("30 2 * * *", "2026-03-28T12:00Z", 2) == [
        at("2026-03-29T03:00+02:00"),
        at("2026-03-30T02:30+02:00"),
    ]
    # Two times in the gap are one tick, because they are the same moment.
    assert first("15,45 2 * * *", "2026-03-28T12:00Z", 2) == [
        at("2026-03-29T03:00+02:00"),
        at("2026-03-30T02:15+02:00"),
    ]


def test_a_repeated_local_time_is_due_once_at_its_first_occurrence() -> None:
    # On 2026-10-25 the clocks of Berlin go from 03:00 back to 02:00.
    expected = [at("2026-10-25T02:30+02:00"), at("2026-10-26T02:30+01:00")]
    assert first("30 2 * * *", "2026-10-24T12:00Z", 2) == expected
    # Also when the search begins between the two occurrences, or after the second one.
    assert first("30 2 * * *", "2026-10-25T02:45+02:00", 1) == expected[1:]
    assert first("30 2 * * *", "2026-10-25T02:15+01:00", 1) == expected[1:]


def test_an_hourly_expression_follows_elapsed_time_through_gap_and_overlap() -> None:
    spring = first("0 * * * *", "2026-03-28T23:30Z", 4)
    autumn = first("0 * * * *", "2026-10-24T22:30Z", 4)
    for ticks in (spring, autumn):
        assert {b - a for a, b in pairwise(ticks)} == {timedelta(hours=1)}


@given(
    cron=st.sampled_from(
        ["30 2 * * *", "*/7 2 * * *", "0,30 1-3 * * *", "15 */2 * * *", "59 1 * * SUN", "* 2 * * *"]
    ),
    zone=st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "UTC"]),
    minutes=st.integers(0, 365 * 24 * 60),
)
def test_ticks_are_ordered_and_do_not_depend_on_the_start_of_the_search(
    cron: str, zone: str, minutes: int
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC) + minutes * MINUTE
    timing = Timing(cron, zone)
    ticks = list(islice(timing.ticks_after(start), 12))
    assert ticks[0] > start
    assert all(b > a for a, b in pairwise(ticks))
    assert [timing.next_after(tick) for tick in ticks[:-1]] == ticks[1:]
    assert timing.next_after(ticks[0] - timedelta(seconds=1)) == ticks[0]


@given(minutes=st.integers(0, 60 * 24 * 400), most=st.integers(1, 120))
def test_after_an_outage_the_newest_ticks_are_due(minutes: int, most: int) -> None:
    timing, since = Timing("*/5 * * * *"), datetime(2025, 1, 1, tzinfo=UTC)
    now = since + minutes * MINUTE
    due = timing.due(since, now, most)
    count = minutes // 5 + 1
    newest = since + (count - 1) * 5 * MINUTE
    shown = min(count, most)
    assert due == [newest - back * 5 * MINUTE for back in reversed(range(shown))]


def test_a_schedule_for_one_time_has_one_tick() -> None:
    moment = NOW + MINUTE
    timing = Timing(start_time=moment)
    assert timing.check(NOW, min_interval=MINUTE) == moment
    assert timing.next_after(NOW) == moment
    assert timing.next_after(moment) is None
    assert timing.due(moment, NOW + timedelta(days=900), 100) == [moment]


@pytest.mark.parametrize(
    ("timing", "field"),
    [
        (Timing(), "cron"),
        (Timing("0 9 * * *", start_time=NOW + MINUTE), "cron"),
        (Timing(start_time=NOW), "start_time"),
        (Timing("0 9 * *"), "cron"),
        (Timing("0 0 9 * * *"), "cron"),
        (Timing("60 * * * *"), "cron"),
        (Timing("*/0 * * * *"), "cron"),
        (Timing("0 0 31 2 *"), "cron"),
        (Timing("0 0 L/L * *"), "cron"),
        (Timing("² * * * *"), "cron"),
        (Timing("* * * * MON#²"), "cron"),
        (Timing("* * * * ²L"), "cron"),
        (Timing("@daily"), "cron"),
        (Timing("1," * 200 + "1 * * * *"), "cron"),
        (Timing("0 9 * * *", "Mars/Olympus"), "time_zone"),
        (Timing("0 9 * * *", "../../etc/passwd"), "time_zone"),
        (Timing("0 9 * * *", "America"), "time_zone"),
        (Timing("0 9 * * *", "Europe/Berlin\0"), "time_zone"),
        (Timing("0 9 * * *", "/etc/localtime"), "time_zone"),
    ],
)
def test_times_that_cannot_be_used_are_refused_by_field(timing: Timing, field: str) -> None:
    with pytest.raises(TimingError) as raised:
        timing.check(NOW, min_interval=MINUTE)
    assert raised.value.field == field


def test_ticks_that_are_too_close_are_refused() -> None:
    assert Timing("*/10 * * * *").check(NOW, min_interval=10 * MINUTE) > NOW
    with pytest.raises(TimingError, match="300 seconds apart"):
        # The intervals are long on average: the shortest interval counts.
        Timing("0,5 9 * * *").check(NOW, min_interval=10 * MINUTE)


@given(
    st.lists(
        st.text(alphabet="0123456789*/,-#LWSUNMOJA²", min_size=1, max_size=8),
        min_size=5,
        max_size=5,
    )
)
def test_any_text_is_accepted_as_an_expression_or_refused(fields: list[str]) -> None:
    timing = Timing(" ".join(fields))
    try:
        tick = timing.check(NOW, min_interval=MINUTE)
    except TimingError:
        return
    assert tick > NOW
