"""Spans of whole days: weeks, months, seasons, and those that recur every year."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable
from datetime import date, timedelta

Span = tuple[date, date]
"""First day and the day after the last, or two moments (`datetime` with a time zone)."""

ONE_DAY = timedelta(days=1)


def one_day(day: date) -> Span:
    """Returns the span of one day."""
    return day, day + ONE_DAY


def month_span(year: int, month: int) -> Span:
    """Returns the span of a month."""
    return date(year, month, 1), date(year, month, monthrange(year, month)[1]) + ONE_DAY


def months_span(year: int, month: int, count: int) -> Span:
    """Returns the span of `count` months from a month on."""
    first = date(year, month, 1)
    return first, later_month(first, count)


def year_span(year: int) -> Span:
    """Returns the span of a year."""
    return date(year, 1, 1), date(year + 1, 1, 1)


def unit_span(day: date, unit: str) -> Span:
    """Returns the day, week (from Monday), month, quarter or year that holds a day."""
    if unit == "week":
        first = day - timedelta(days=day.weekday())
        return first, first + timedelta(days=7)
    if unit == "month":
        return month_span(day.year, day.month)
    if unit == "quarter":
        return months_span(day.year, (day.month - 1) // 3 * 3 + 1, 3)
    if unit == "year":
        return year_span(day.year)
    return one_day(day)


def days_back(day: date, number: int, unit: str) -> date:
    """Returns the day that is a number of days, weeks, months, quarters or years earlier.

    Raises:
        ValueError: The day is before the calendar.
        OverflowError: The number is too large.
    """
    if unit in {"day", "week"}:
        return day - timedelta(days=number * (7 if unit == "week" else 1))
    months = number * {"month": 1, "quarter": 3, "year": 12}[unit]
    year, month = divmod(day.year * 12 + day.month - 1 - months, 12)
    return date(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def later_month(first: date, months: int) -> date:
    """Returns the first day of the month that is a number of months later."""
    year, month = divmod(first.year * 12 + first.month - 1 + months, 12)
    return date(year, month + 1, 1)


def newest_year(span_of: Callable[[int], Span], today: date) -> int:
    """Returns the newest year whose span has begun; leap days need more years.

    Raises:
        ValueError: There is no such span.
    """
    for year in range(today.year, today.year - 9, -1):
        try:
            first, _ = span_of(year)
        except ValueError:
            continue
        if first <= today:
            return year
    raise ValueError("there is no such day")
