"""Readers: the time spans that the match of a rule means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta

from strata.shared.search.time_grammar.calendar_spans import (
    ONE_DAY,
    Span,
    days_back,
    month_span,
    months_span,
    newest_year,
    one_day,
    unit_span,
    year_span,
)
from strata.shared.search.time_grammar.holidays import holiday_span
from strata.shared.search.time_grammar.rules import FEW, UNITS, YEAR, Reader, Reference, RuleMatch

_WEEKLY = 7
_ANNUAL = 366


def recurrence(match: RuleMatch) -> int:
    """Returns after how many days at most the named time comes again; 0 if it is one time."""
    if match.which is not None or match.has("year") or match.has("years") or match.has("number"):
        return 0
    return _RECURRENCES.get(match.rule.read, 0)


def day_of_month(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "March 3" and "3 March 2025"."""
    month, day = match.value("month"), match.value("day")
    return _yearly(match, reference, lambda year: one_day(date(year, month, day)))


def day_of_relative_month(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "the 3rd of last month"."""
    first, end = unit_span(
        days_back(reference.today, -match.value("relative_month"), "month"), "month"
    )
    day = first + timedelta(days=match.value("day") - 1)
    if not first <= day < end:
        raise ValueError("the month has no such day")
    return _begun([one_day(day)], reference)


def days_of_month(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "3 to 7 March"."""
    month, first, last = match.value("month"), match.value("day"), match.value("day2")
    if first >= last:
        raise ValueError("the first day is not before the last")
    return _yearly(
        match, reference, lambda year: (date(year, month, first), date(year, month, last) + ONE_DAY)
    )


def month(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "in March", "last March" and "March 2025"."""
    number = match.value("month")
    return _yearly(match, reference, lambda year: month_span(year, number))


def season(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "last summer"; seasons are the meteorological ones of the user's hemisphere."""
    first = match.value("season")
    if reference.region.southern:
        first = (first + 5) % 12 + 1
    return _yearly(match, reference, lambda year: months_span(year, first, 3))


def quarter(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "in the second quarter"; quarters are those of the calendar year."""
    first = match.value("quarter") * 3 - 2
    return _yearly(match, reference, lambda year: months_span(year, first, 3))


def half_year(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "the first half of 2025"."""
    first = match.value("half") * 6 - 5
    return _yearly(match, reference, lambda year: months_span(year, first, 6))


def holiday(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "last Christmas" and "Easter 2025"."""
    number = match.value("holiday")
    return _yearly(match, reference, lambda year: holiday_span(number, year))


def year(match: RuleMatch, _: Reference) -> Sequence[Span]:
    """Reads "in 2024"."""
    return [year_span(match.value("year"))]


def years(match: RuleMatch, _: Reference) -> Sequence[Span]:
    """Reads "2019-2021"."""
    first, last = match.value("year"), match.value("year2")
    if first > last:
        raise ValueError("the first year is after the last")
    return [(year_span(first)[0], year_span(last)[1])]


def near_day(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "yesterday": a number of days before today."""
    return [one_day(reference.today + timedelta(days=match.value("near")))]


def weekday(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "on Friday", "last Friday" and "two Fridays ago"."""
    today, which = reference.today, match.which
    back = (today.weekday() - match.value("weekday")) % _WEEKLY
    if which == 0:
        day = today - timedelta(days=today.weekday() - match.value("weekday"))
        return _begun([one_day(day)], reference)
    if match.has("number"):
        which = -_count(match)
    if which is not None:
        back = (back or _WEEKLY) + _WEEKLY * (-1 - which)
    return [one_day(today - timedelta(days=back))]


def weekday_of_week(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "Friday of last week"."""
    monday = reference.today - timedelta(days=reference.today.weekday())
    day = monday + timedelta(days=_WEEKLY * match.value("week") + match.value("weekday"))
    return _begun([one_day(day)], reference)


def weekday_weeks_ago(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "Friday two weeks ago"."""
    monday = reference.today - timedelta(days=reference.today.weekday())
    weeks = _count(match)
    return [one_day(monday + timedelta(days=match.value("weekday") - _WEEKLY * weeks))]


def weekend(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "last weekend" and "two weekends ago"."""
    today, which = reference.today, match.which
    if match.has("number"):
        which = -_count(match)
    back = (today.weekday() - 5) % _WEEKLY
    if which is not None and which < 0:
        back += _WEEKLY * (-1 - which) + (_WEEKLY if today.weekday() >= 5 else 0)
    saturday = today - timedelta(days=back)
    return [(saturday, saturday + timedelta(days=2))]


def period(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "last week", "this month" and "the year before last"."""
    unit = UNITS[match.value("period")]
    return [unit_span(days_back(reference.today, -(match.which or 0), unit), unit)]


def week(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads one word for a week, such as "先週"."""
    first, end = unit_span(reference.today, "week")
    shift = timedelta(days=_WEEKLY * match.value("week"))
    return _begun([(first + shift, end + shift)], reference)


def relative_year(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "去年" and "the beginning of the year" as the whole year."""
    return _begun([year_span(reference.now.year + match.value("years"))], reference)


def ago(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "3 weeks ago" as the day, the seven days around it, the month or the year.

    Hours and minutes are read with as much before and after as people are imprecise.
    """
    fewest, most = _numbers(match)
    if most > _MOST_YEARS and match.value("unit") == YEAR:
        raise ValueError("the year is before all conversations")  # "2020年前" is before 2020
    return [_ago(reference, fewest, most, UNITS[match.value("unit")])]


def half_year_ago(_: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "half a year ago"."""
    return [_ago(reference, 6, 6, "month")]


def last_so_many(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "the past 3 weeks" and "the past month", up to today."""
    most = _numbers(match)[1] if match.has("number") else 1
    unit = UNITS[match.value("unit")]
    if unit in _CLOCK_UNITS:
        length, slack = _CLOCK_UNITS[unit]
        now = reference.now.astimezone(UTC)
        return [(now - most * length, now + slack)]
    return [(days_back(reference.today, most, unit), reference.today + ONE_DAY)]


def vague(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    """Reads "recently" as the last days, up to today."""
    return [(reference.today - timedelta(days=match.value("vague")), reference.today + ONE_DAY)]


def time_of_day(match: RuleMatch) -> time:
    """Returns the time of a clock: "5 pm", "17:30", "noon".

    Raises:
        ValueError: There is no such time.
    """
    if match.has("clock_word"):
        return time(match.value("clock_word"))
    hour = match.value("hour")
    minute = match.value("minute") if match.has("minute") else 0
    if match.has("half_day") and hour <= 12:
        hour = hour % 12 + match.value("half_day")
    return time(hour, minute)


_MOST_YEARS = 200
_CLOCK_UNITS = {
    "minute": (timedelta(minutes=1), timedelta(minutes=10)),
    "hour": (timedelta(hours=1), timedelta(hours=1)),
}
_RECURRENCES: dict[Reader, int] = {
    day_of_month: _ANNUAL, days_of_month: _ANNUAL, month: _ANNUAL, season: _ANNUAL,
    quarter: _ANNUAL, half_year: _ANNUAL, holiday: _ANNUAL, weekday: _WEEKLY,
}  # fmt: skip


def _yearly(
    match: RuleMatch, reference: Reference, span_of: Callable[[int], Span]
) -> Sequence[Span]:
    """Returns the occurrence that is meant of a time that recurs every year."""
    if match.has("year"):
        return [span_of(match.value("year"))]
    if match.has("years"):
        return _begun([span_of(reference.now.year + match.value("years"))], reference)
    newest = newest_year(span_of, reference.today)
    which = -_count(match) if match.has("number") else match.which
    _, end = span_of(newest)
    if which == 0:
        this_year = (end - ONE_DAY).year == reference.today.year
        return [span_of(newest)] if this_year else []
    if which is not None:
        newest += which + (0 if reference.today < end else 1)
    return [span_of(newest)]


def around(moment: datetime) -> tuple[datetime, datetime]:
    """Returns the span that the time of a clock means: an hour before and after it."""
    hour = timedelta(hours=1)
    return moment.astimezone(UTC) - hour, moment.astimezone(UTC) + hour


def _begun(spans: Sequence[Span], reference: Reference) -> Sequence[Span]:
    return [span for span in spans if span[0] <= reference.now.date()]


def _ago(reference: Reference, fewest: int, most: int, unit: str) -> Span:
    if unit in _CLOCK_UNITS:
        length, slack = _CLOCK_UNITS[unit]
        now = reference.now.astimezone(UTC)
        return now - most * length - slack, now - fewest * length + slack
    first, last = (days_back(reference.today, number, unit) for number in (most, fewest))
    if unit == "week":
        return first - timedelta(days=3), last + timedelta(days=4)
    return unit_span(first, unit)[0], unit_span(last, unit)[1]


def _numbers(match: RuleMatch) -> tuple[int, int]:
    first = match.value("number")
    last = match.value("number2") if match.has("number2") else first
    if FEW in {first, last}:
        return 2, 5
    if first > last:
        raise ValueError("the first number is above the second")
    return first, last


def _count(match: RuleMatch) -> int:
    number = match.value("number")
    if number < 1:
        raise ValueError("not a number of occurrences")
    return number
