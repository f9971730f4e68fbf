"""Times in a time zone, also at the ends of the calendar."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from strata.shared.local_time import in_zone, is_time_zone

FIRST = datetime(1, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "zone", "shown"),
    [
        (datetime(2026, 7, 1, tzinfo=UTC), "America/New_York", "2026-06-30T20:00:00-04:00"),
        (FIRST, "America/New_York", "0001-01-01T00:00:00+00:00"),
        (LAST, "Asia/Tokyo", "9999-12-31T23:59:59+00:00"),
        (LAST, "America/New_York", "9999-12-31T18:59:59-05:00"),
    ],
)
def test_a_time_is_shown_in_its_zone_if_the_calendar_allows_it(
    moment: datetime, zone: str, shown: str
) -> None:
    assert in_zone(moment, ZoneInfo(zone)).isoformat() == shown


@pytest.mark.parametrize(
    "name",
    ["UTC", "Europe/Berlin", "Asia/Kathmandu", "Asia/Katmandu", "Australia/Lord_Howe", "EST5EDT"],
)
def test_zones_of_iana_and_their_aliases_are_time_zones(name: str) -> None:
    assert is_time_zone(name)


@pytest.mark.parametrize(
    "name",
    # Files of a system's database that depend on the machine, or count leap seconds.
    [
        "localtime",
        "posixrules",
        "Factory",
        "right/Europe/Berlin",
        "posix/Europe/Berlin",
        "",
        "Europe",
        "europe/berlin",
        "../UTC",
        "/etc/localtime",
        "UTC\0",
        "GMT+5",
        "x" * 5_000,
    ],
)
def test_other_names_are_no_time_zones(name: str) -> None:
    assert not is_time_zone(name)
