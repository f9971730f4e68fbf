"""The days of holidays that people date their memories by."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from enum import IntEnum, auto

from strata.shared.search.time_grammar.calendar_spans import Span, one_day


class Holiday(IntEnum):
    """A holiday that a language has words for."""

    CHRISTMAS = auto()
    CHRISTMAS_EVE = auto()
    NEW_YEARS_EVE = auto()
    NEW_YEARS_DAY = auto()
    EASTER = auto()
    PENTECOST = auto()
    HALLOWEEN = auto()
    VALENTINES_DAY = auto()
    THANKSGIVING = auto()
    FOURTH_OF_JULY = auto()
    LABOUR_DAY = auto()
    CHINESE_NEW_YEAR = auto()
    CHINESE_NATIONAL_DAY = auto()
    JAPANESE_NEW_YEAR = auto()
    GOLDEN_WEEK = auto()
    OBON = auto()


def holiday_span(holiday: int, year: int) -> Span:
    """Returns the days of a holiday in a year.

    Raises:
        ValueError: The calendar or the table of Chinese New Year ends before.
    """
    return _SPANS[Holiday(holiday)](year)


def easter_sunday(year: int) -> date:
    """Returns Easter Sunday of the Gregorian calendar (Meeus, Jones and Butcher)."""
    cycle = year % 19
    century, of_century = divmod(year, 100)
    leap_centuries, century_rest = divmod(century, 4)
    correction = (century - (century + 8) // 25 + 1) // 3
    moon = (19 * cycle + century - leap_centuries - correction + 15) % 30
    leap_years, year_rest = divmod(of_century, 4)
    weekday = (32 + 2 * century_rest + 2 * leap_years - moon - year_rest) % 7
    shift = (cycle + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * shift + 114, 31)
    return date(year, month, day + 1)


def _days(month: int, day: int, count: int = 1) -> Callable[[int], Span]:
    def span(year: int) -> Span:
        first = date(year, month, day)
        return first, first + timedelta(days=count)

    return span


def _easter(year: int) -> Span:
    """Good Friday to Easter Monday."""
    sunday = easter_sunday(year)
    return sunday - timedelta(days=2), sunday + timedelta(days=2)


def _pentecost(year: int) -> Span:
    sunday = easter_sunday(year) + timedelta(days=49)
    return sunday, sunday + timedelta(days=2)


def _thanksgiving(year: int) -> Span:
    """The fourth Thursday of November, as in the United States."""
    first = date(year, 11, 1)
    return one_day(first + timedelta(days=(3 - first.weekday()) % 7 + 21))


# The second new moon after the winter solstice in China; a formula needs an ephemeris.
_CHINESE_NEW_YEAR = {
    2010: (2, 14), 2011: (2, 3), 2012: (1, 23), 2013: (2, 10), 2014: (1, 31), 2015: (2, 19),
    2016: (2, 8), 2017: (1, 28), 2018: (2, 16), 2019: (2, 5), 2020: (1, 25), 2021: (2, 12),
    2022: (2, 1), 2023: (1, 22), 2024: (2, 10), 2025: (1, 29), 2026: (2, 17), 2027: (2, 6),
    2028: (1, 26), 2029: (2, 13), 2030: (2, 3), 2031: (1, 23), 2032: (2, 11), 2033: (1, 31),
    2034: (2, 19), 2035: (2, 8), 2036: (1, 28), 2037: (2, 15), 2038: (2, 4), 2039: (1, 24),
    2040: (2, 12), 2041: (2, 1), 2042: (1, 22), 2043: (2, 10), 2044: (1, 30), 2045: (2, 17),
    2046: (2, 6), 2047: (1, 26), 2048: (2, 14), 2049: (2, 2), 2050: (1, 23),
}  # fmt: skip


def _chinese_new_year(year: int) -> Span:
    """The eve and the week after it."""
    if year not in _CHINESE_NEW_YEAR:
        raise ValueError(f"no date of Chinese New Year {year}")
    first = date(year, *_CHINESE_NEW_YEAR[year])
    return first - timedelta(days=1), first + timedelta(days=7)


_SPANS: dict[Holiday, Callable[[int], Span]] = {
    Holiday.CHRISTMAS: _days(12, 24, 3),
    Holiday.CHRISTMAS_EVE: _days(12, 24),
    Holiday.NEW_YEARS_EVE: _days(12, 31),
    Holiday.NEW_YEARS_DAY: _days(1, 1),
    Holiday.EASTER: _easter,
    Holiday.PENTECOST: _pentecost,
    Holiday.HALLOWEEN: _days(10, 31),
    Holiday.VALENTINES_DAY: _days(2, 14),
    Holiday.THANKSGIVING: _thanksgiving,
    Holiday.FOURTH_OF_JULY: _days(7, 4),
    Holiday.LABOUR_DAY: _days(5, 1),
    Holiday.CHINESE_NEW_YEAR: _chinese_new_year,
    Holiday.CHINESE_NATIONAL_DAY: _days(10, 1, 7),
    Holiday.JAPANESE_NEW_YEAR: _days(1, 1, 3),
    Holiday.GOLDEN_WEEK: _days(4, 29, 7),
    Holiday.OBON: _days(8, 13, 4),
}
