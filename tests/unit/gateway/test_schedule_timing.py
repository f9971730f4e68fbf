"""Due times of schedules: cron expressions, time zones, daylight saving, stopped gateways."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
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
        (Timing("0 9 * * *", "right/Europe/Berlin"), "time_zone"),
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


ZONES = [
    BERLIN,
    "America/New_York",
    "Australia/Lord_Howe",  # half an hour
    "Antarctica/Troll",  # two hours
    "Africa/Casablanca",  # back in Ramadan
    "America/Santiago",  # a gap at midnight
    "America/Havana",  # an overlap to midnight
    "Asia/Beirut",  # an overlap to the day before
    "America/Nuuk",
]
MINUTES = [["*"], ["*/15"], ["0"], ["5", "30"], ["15", "45"], ["59"]]
HOURS = [["*"], ["*/2"], ["0"], ["1"], ["2"], ["1", "2", "3"], ["23"], ["22", "0"]]


@cache
def changes(zone: ZoneInfo, year: int) -> list[datetime]:
    """Returns the half hours of a year, in UTC, at which the offset of a zone changes."""
    start = datetime(year, 1, 1, tzinfo=UTC)
    halves = [start + count * 30 * MINUTE for count in range(366 * 48)]
    offsets = [half.astimezone(zone).utcoffset() for half in halves]
    return [halves[i] for i in range(1, len(halves)) if offsets[i] != offsets[i - 1]]


def members(terms: list[str], values: range) -> set[int]:
    """Returns the values that the terms of a field name."""
    [first_term, *_] = terms
    if first_term.startswith("*"):
        return set(values[:: int(first_term[2:] or 1)])
    return {int(term) for term in terms}


def ticks_minute_by_minute(
    minutes: list[str], hours: list[str], zone: ZoneInfo, moments: list[datetime]
) -> list[datetime]:
    """Returns which of these minutes are ticks of an expression, by the rules of `Timing`."""
    minute_values, hour_values = members(minutes, range(60)), members(hours, range(24))
    elapsed = minutes[0].startswith("*") or hours[0].startswith("*")

    def named(wall: datetime) -> bool:
        return wall.minute in minute_values and wall.hour in hour_values

    ticks = []
    before = (moments[0] - MINUTE).astimezone(zone).replace(tzinfo=None)
    for moment in moments:
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        lacking = [before + n * MINUTE for n in range(1, (wall - before) // MINUTE)]
        once = (named(wall) and not local.fold) or any(map(named, lacking))
        if named(wall) if elapsed else once:
            ticks.append(moment)
        before = wall
    return ticks


@pytest.mark.parametrize("name", ZONES)
@given(
    year=st.integers(2024, 2036),
    lead=st.integers(0, 300),
    minutes=st.sampled_from(MINUTES),
    hours=st.sampled_from(HOURS),
)
@settings(max_examples=settings().max_examples // 5)
def test_no_tick_is_lost_or_repeated_when_the_offset_changes(
    name: str, year: int, lead: int, minutes: list[str], hours: list[str]
) -> None:
    zone = ZoneInfo(name)
    for change in changes(zone, year):
        start = change - lead * MINUTE
        moments = [start + n * MINUTE for n in range(1, 8 * 60)]
        timing = Timing(f"{','.join(minutes)} {','.join(hours)} * * *", name)
        ticks = takewhile(moments[-1].__ge__, timing.ticks_after(start))
        assert list(ticks) == ticks_minute_by_minute(minutes, hours, zone, moments), timing


def test_an_expression_with_a_star_has_its_ticks_when_the_offset_changes_by_half_an_hour() -> None:
    # On 2026-04-05 the clocks of Lord Howe Island go from 02:00 back to 01:30.
    assert first("5 */2 * * *", "2026-04-04T22:00+10:30", 3, "Australia/Lord_Howe") == [
        at("2026-04-05T00:05+11:00"),
        at("2026-04-05T02:05+10:30"),
        at("2026-04-05T04:05+10:30"),
    ]
    # On 2026-10-04 they go from 02:00 to 02:30.
    assert first("30 * * * *", "2026-10-04T01:00+10:30", 3, "Australia/Lord_Howe") == [
        at("2026-10-04T01:30+10:30"),
        at("2026-10-04T02:30+11:00"),
        at("2026-10-04T03:30+11:00"),
    ]


def test_days_that_begin_in_a_gap_have_no_tick_for_the_time_that_they_lack() -> None:
    # On 2026-09-06, a Sunday, the clocks of Santiago go from 00:00 to 01:00.
    assert first("*/30 0-1 * * SUN", "2026-09-05T12:00-04:00", 3, "America/Santiago") == [
        at("2026-09-06T01:00-03:00"),
        at("2026-09-06T01:30-03:00"),
        at("2026-09-13T00:00-03:00"),
    ]
