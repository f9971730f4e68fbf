"""Dates in digits: ISO 8601, "10.03.2026" and "10/03/2026".

Dots mean that the day is first. Slashes and dashes are read in the order of the language where the
text shows it, then in the order of the user's country, which the time zone names. If neither is
known ("UTC"), both readings count. A reading that is not a date is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime

from strata.shared.search.time_grammar.calendar_spans import Span, month_span, one_day
from strata.shared.search.time_grammar.readers import around, day_of_month, years
from strata.shared.search.time_grammar.rules import (
    NOT_A_COUNT,
    Language,
    Reference,
    Rule,
    RuleMatch,
)

_DAY_FIRST = frozenset({"de", "fr", "es"})


def _iso_day(match: RuleMatch, _: Reference) -> Sequence[Span]:
    return [one_day(date(match.value("y"), match.value("m"), match.value("d")))]


def _iso_month(match: RuleMatch, _: Reference) -> Sequence[Span]:
    return [month_span(match.value("y"), match.value("m"))]


def _iso_time(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    moment = datetime.fromisoformat(match.match.group().replace(" ", "T").upper())
    return [around(moment if moment.tzinfo else moment.replace(tzinfo=reference.zone))]


def _slashes(match: RuleMatch, reference: Reference) -> Sequence[Span]:
    first, second, year = match.value("a"), match.value("b"), match.value("y")
    if year < 100:
        year += 2000
    month_first = _day_or_none(year, first, second)
    day_first = _day_or_none(year, second, first)
    if month_first and day_first:
        order = _month_first(reference)
        days = {month_first, day_first} if order is None else {month_first if order else day_first}
    else:
        days = {day for day in (month_first, day_first) if day}
    if not days:
        raise ValueError("not a date")
    return [one_day(day) for day in sorted(days)]


def _month_first(reference: Reference) -> bool | None:
    if reference.languages and reference.languages <= _DAY_FIRST:
        return False
    return reference.region.month_first


def _day_or_none(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


_YEAR, _MONTH, _DAY = r"(?P<y>(?:19|20)\d\d)", r"(?P<m>[01]?\d)", r"(?P<d>[0-3]?\d)"
_FIRST, _SECOND = r"(?P<a>[0-3]?\d)", r"(?P<b>[0-3]?\d)"
# Not a part of a longer number, path or code, such as "CVE-2026-03" or "10.0.3.2026".
_ALONE, _END = r"(?<![\w./-])", r"(?![\w/-])(?!\.\d)"

NUMERIC_DATES = Language(
    code="",
    lexicons={},
    rules=(
        Rule(
            _ALONE + r"(?:19|20)\d\d-\d\d-\d\d(?:t| )\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
            r"(?:z|[+-]\d\d:?\d\d)?" + _END,
            _iso_time,
        ),
        Rule(_ALONE + _YEAR + r"-(?P<m>\d\d)-(?P<d>\d\d)(?!\d)", _iso_day),
        Rule(_ALONE + _YEAR + r"-(?P<m>0[1-9]|1[0-2])" + _END, _iso_month),
        Rule(_ALONE + _YEAR + "(?P<sep>[./])" + _MONTH + "(?P=sep)" + _DAY + _END, _iso_day),
        Rule(_ALONE + _YEAR + r"/(?P<m>0[1-9]|1[0-2])" + _END, _iso_month),
        Rule(_ALONE + _DAY + r"\. ?" + _MONTH + r"\. ?" + _YEAR + _END, _iso_day),
        Rule(
            r"(?<!\w)(?:am|vom|zum|dem) (?P<words>{day}\.(?P<month>1[0-2]|0?[1-9])\.)(?! ?\d)",
            day_of_month,
        ),
        Rule(_ALONE + _FIRST + "(?P<sep>[/-])" + _SECOND + "(?P=sep)" + _YEAR + _END, _slashes),
        Rule(_ALONE + _FIRST + "/" + _SECOND + r"/(?P<y>\d\d)" + _END, _slashes),
        Rule(_ALONE + "{year} ?- ?{year2}" + NOT_A_COUNT + _END, years),
    ),
    spaced=False,
)
