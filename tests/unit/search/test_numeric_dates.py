"""Dates in digits, whose order depends on the language and the country."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from named_times import NOW, Days, day, days, hours

MARCH_10, OCTOBER_3 = day("2026-03-10"), day("2026-10-03")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-10", MARCH_10),
        ("2026/3/10", MARCH_10),
        ("2026.3.10", MARCH_10),
        ("10.3.2026", MARCH_10),
        ("10. 3. 2026", MARCH_10),
        ("2026-03", [("2026-03-01", "2026-03-31")]),
        ("2026/03", [("2026-03-01", "2026-03-31")]),
        ("25/12/2025", day("2025-12-25")),
        ("12/25/2025", day("2025-12-25")),
        ("12-25-2025", day("2025-12-25")),
        ("25/12/25", day("2025-12-25")),
        ("3/3/2026", day("2026-03-03")),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Europe/Berlin"])
def test_dates_in_digits_with_one_reading_are_recognised(
    text: str, expected: Days, zone: str
) -> None:
    assert days(f"what about {text}?", NOW, ZoneInfo(zone)) == expected


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("what did I say on 10/03/2026?", "America/New_York", OCTOBER_3),
        ("what did I say on 10/03/2026?", "US/Pacific", OCTOBER_3),
        ("what did I say on 10/03/2026?", "Europe/London", MARCH_10),
        ("what did I say on 10/03/2026?", "Asia/Tokyo", MARCH_10),
        ("what did I say on 10/03/2026?", "America/Toronto", [*MARCH_10, *OCTOBER_3]),
        ("what did I say on 10/03/2026?", "UTC", [*MARCH_10, *OCTOBER_3]),
        ("Was habe ich am 10/03/2026 gesagt?", "America/New_York", MARCH_10),
        ("Qu'est-ce que j'ai dit le 10/03/2026 ?", "UTC", MARCH_10),
        ("¿Qué dije el 10/03/2026?", "UTC", MARCH_10),
        ("from 10/03/2026 to 12/03/2026", "Europe/London", [("2026-03-10", "2026-03-12")]),
        ("since 10/03/2026", "America/New_York", [("2026-10-03", "")]),
    ],
)
def test_the_order_is_that_of_the_language_then_that_of_the_country(
    text: str, zone: str, expected: Days
) -> None:
    assert days(text, NOW, ZoneInfo(zone)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-10T17:30", ("2026-03-10 16:30", "2026-03-10 18:30")),
        ("2026-03-10 17:30:15", ("2026-03-10 16:30", "2026-03-10 18:30")),
        ("2026-03-10t17:30z", ("2026-03-10 17:30", "2026-03-10 19:30")),
        ("2026-03-10T17:30:00+02:00", ("2026-03-10 15:30", "2026-03-10 17:30")),
    ],
)
def test_iso_times_without_a_zone_are_in_the_zone_of_the_user(
    text: str, expected: tuple[str, str]
) -> None:
    assert hours(text, NOW, ZoneInfo("Europe/Berlin")) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "31/02/2026", "2026-13-01", "2026-02-30", "40.1.2026", "1/2/3", "10/3", "3.11.7",
        "192.168.20.26", "CVE-2026-1234", "INV-2026-03", "1234-2026-03-10", "555-12-34",
        "https://example.com/2026-03-10-x", "v2026.03", "10-03-26",
    ],
)  # fmt: skip
def test_other_digits_are_ignored(text: str) -> None:
    assert days(text) == []
