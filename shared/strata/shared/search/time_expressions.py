"""Recognises English expressions of time in questions: "yesterday", "last March", "two weeks ago".

An expression becomes a time range in the timezone of the user. Searches use it to rank texts from
that time higher. They must not use it as a filter: a question can also name the time of an event
("when is the trip in May?") that was talked about at another time.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_Days = tuple[date, date]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A time range and the words for it; times are UTC, None is open, `end` is exclusive."""

    words: str
    start: datetime | None
    end: datetime | None

    def holds(self, moment: datetime) -> bool:
        """Returns whether a moment lies in the range."""
        return (self.start is None or moment >= self.start) and (
            self.end is None or moment < self.end
        )


def time_ranges(text: str, now: datetime, timezone: ZoneInfo) -> tuple[TimeRange, ...]:
    """Returns the time ranges that a text names, in the order of the words.

    Args:
        text: A question or some words.
        now: The time that expressions such as "yesterday" refer to; time zone aware.
        timezone: Timezone of the author.
    """
    try:
        today = now.astimezone(timezone).date()
    except OverflowError:
        return ()  # at either end of the calendar
    expressions = [
        _Expression(match.start(), match.end(), days, match.group().strip())
        for rule, read in _RULES
        for match in rule.finditer(text)
        if (days := _or_none(read, match, today)) is not None
    ]
    return tuple(
        _moments(expression, timezone) for expression in _joined(_apart(expressions), text)
    )


def just_before(moment: datetime | None) -> datetime | None:
    """Returns the last moment before another, for interfaces with an inclusive end."""
    if moment is None or moment == datetime.min.replace(tzinfo=UTC):
        return moment  # nothing is earlier
    return moment - timedelta(microseconds=1)


def zone_of(name: str) -> ZoneInfo:
    """Returns the timezone of an IANA name; UTC if the name is empty or unknown."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo("UTC")


@dataclass(frozen=True, slots=True)
class _Expression:
    begin: int
    end: int
    days: _Days
    words: str
    opening: str = ""


def _or_none(
    read: Callable[[re.Match[str], date], _Days], match: re.Match[str], today: date
) -> _Days | None:
    try:
        return read(match, today)
    except (ValueError, OverflowError):
        return None  # February 30, or 9,999,999 days ago


def _apart(expressions: list[_Expression]) -> list[_Expression]:
    """Returns the expressions without overlaps; where they overlap, the longest wins."""
    kept: list[_Expression] = []
    for one in sorted(expressions, key=lambda one: (one.begin - one.end, one.begin)):
        if all(one.end <= other.begin or one.begin >= other.end for other in kept):
            kept.append(one)
    return sorted(kept, key=lambda one: one.begin)


_BETWEEN = re.compile(r"\b(?:between|from)\W+(?:\w+\W+){0,2}$", re.IGNORECASE)
_AND = re.compile(r"^\W*(?:and|to|until|till|through)\W+(?:\w+\W+)?$", re.IGNORECASE)
_OPEN = re.compile(r"(since|after|before|until|till)\W+", re.IGNORECASE)
_OPEN_BEFORE = re.compile(r"\b(since|after|before|until|till)\W+$", re.IGNORECASE)


def _joined(expressions: list[_Expression], text: str) -> Iterator[_Expression]:
    """Merges "between A and B" into one, and opens the range of "since A" and "before A"."""
    position = 0
    while position < len(expressions):
        one = expressions[position]
        before = text[: one.begin]
        after = expressions[position + 1] if position + 1 < len(expressions) else None
        if after and _BETWEEN.search(before) and _AND.search(text[one.end : after.begin]):
            days = (min(one.days[0], after.days[0]), max(one.days[1], after.days[1]))
            yield _Expression(one.begin, after.end, days, text[one.begin : after.end])
            position += 2
            continue
        opened, own = _OPEN_BEFORE.search(before), _OPEN.match(one.words)
        words = f"{opened.group(1)} {one.words}" if opened else one.words
        opening = (opened or own or [""] * 2)[1].lower()
        yield _Expression(one.begin, one.end, one.days, words, opening)
        position += 1


def _moments(expression: _Expression, timezone: ZoneInfo) -> TimeRange:
    first, last = expression.days
    start: datetime | None = _midnight(first, timezone)
    end: datetime | None = _midnight(last, timezone)
    if expression.opening == "since":
        end = None
    elif expression.opening == "after":
        start, end = end, None
    elif expression.opening:
        start, end = None, (start if expression.opening == "before" else end)
    return TimeRange(expression.words, start, end)


def _midnight(day: date, timezone: ZoneInfo) -> datetime:
    there = datetime.combine(day, time(), timezone)
    try:
        return there.astimezone(UTC)
    except OverflowError:  # the first or the last day of the calendar
        return there.replace(tzinfo=UTC)


_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul",
            "august aug", "september sept sep", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SEASONS = {"spring": 3, "summer": 6, "fall": 9, "autumn": 9, "winter": 12}
_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "two": 2, "couple of": 2, "three": 3, "few": 3, "four": 4, "five": 5,
    "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_MONTH = r"(?P<month>" + "|".join(sorted(_MONTHS, key=len, reverse=True)) + r")\b\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?\b"
_NUMBER = r"(?:a\s+)?(?P<number>\d{1,4}|couple\s+of|few|" + "|".join(_NUMBERS) + r")"
_UNIT = r"(?P<unit>day|week|month|year)s?"
_ONE_DAY = timedelta(days=1)


def _iso(match: re.Match[str], today: date) -> _Days:
    day = date(int(match["y"]), int(match["m"]), int(match["d"]))
    return day, day + _ONE_DAY


def _day_of_month(match: re.Match[str], today: date) -> _Days:
    month = _MONTHS[match["month"].lower()]
    if match["year"]:
        day = date(int(match["year"]), month, int(match["day"]))
    else:
        day = _newest(lambda year: date(year, month, int(match["day"])), today)
    return day, day + _ONE_DAY


def _month(match: re.Match[str], today: date) -> _Days:
    number = _MONTHS[match["month"].lower()]
    if match["year"]:
        return _month_of(int(match["year"]), number)
    first = _newest(lambda year: date(year, number, 1), today)
    if match["which"].lower() == "last" and (first.year, first.month) == (today.year, today.month):
        first = first.replace(year=first.year - 1)
    return _month_of(first.year, first.month)


def _year(match: re.Match[str], today: date) -> _Days:
    year = int(match["year"])
    return date(year, 1, 1), date(year + 1, 1, 1)


def _season(match: re.Match[str], today: date) -> _Days:
    month = _SEASONS[match["season"].lower()]
    if match["year"]:
        first = date(int(match["year"]), month, 1)
    else:
        first = _newest(lambda year: date(year, month, 1), today)
        if match["which"].lower() == "last" and today < _later(first, 3):
            first = first.replace(year=first.year - 1)
    return first, _later(first, 3)


def _near_day(match: re.Match[str], today: date) -> _Days:
    words = match.group().lower()
    if words.startswith("the day before"):
        back = 2
    elif words.startswith(("yesterday", "last")):
        back = 1
    else:
        back = 0
    day = today - timedelta(days=back)
    return day, day + _ONE_DAY


def _weekday(match: re.Match[str], today: date) -> _Days:
    back = (today.weekday() - _WEEKDAYS.index(match["weekday"].lower())) % 7
    if back == 0 and match["which"].lower() in {"last", "past", "previous"}:
        back = 7
    day = today - timedelta(days=back)
    return day, day + _ONE_DAY


def _weekend(match: re.Match[str], today: date) -> _Days:
    back = (today.weekday() - 5) % 7
    if match["which"].lower() in {"last", "past", "previous"} and today.weekday() >= 5:
        back += 7
    saturday = today - timedelta(days=back)
    return saturday, saturday + timedelta(days=2)


def _period(match: re.Match[str], today: date) -> _Days:
    """Reads "last week", "this month" and "the past year"."""
    which, unit = match["which"].lower(), match["unit"].lower()
    if which == "past":
        return _back(today, 1, unit), today + _ONE_DAY
    first = _first_of(today, unit)
    if which in {"last", "previous"}:
        first = _first_of(first - _ONE_DAY, unit)
    return first, _after(first, unit)


def _ago(match: re.Match[str], today: date) -> _Days:
    """Reads "3 weeks ago" as the day, the seven days around it, the month or the year."""
    unit = match["unit"].lower()
    day = _back(today, _number(match["number"]), unit)
    if unit == "day":
        return day, day + _ONE_DAY
    if unit == "week":
        return day - timedelta(days=3), day + timedelta(days=4)
    first = _first_of(day, unit)
    return first, _after(first, unit)


def _last_so_many(match: re.Match[str], today: date) -> _Days:
    return _back(today, _number(match["number"]), match["unit"].lower()), today + _ONE_DAY


def _number(text: str) -> int:
    words = " ".join(text.lower().split())
    return int(words) if words.isdigit() else _NUMBERS[words]


def _newest(make: Callable[[int], date], today: date) -> date:
    """Returns the newest such day that is not in the future; leap days need more years."""
    for year in range(today.year, today.year - 9, -1):
        try:
            day = make(year)
        except ValueError:
            continue
        if day <= today:
            return day
    raise ValueError("there is no such day")


def _month_of(year: int, month: int) -> _Days:
    return date(year, month, 1), date(year, month, monthrange(year, month)[1]) + _ONE_DAY


def _first_of(day: date, unit: str) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    if unit == "month":
        return day.replace(day=1)
    if unit == "year":
        return day.replace(month=1, day=1)
    return day


def _after(first: date, unit: str) -> date:
    if unit == "week":
        return first + timedelta(days=7)
    if unit == "month":
        return _later(first, 1)
    return _later(first, 12) if unit == "year" else first + _ONE_DAY


def _later(first: date, months: int) -> date:
    """Returns the first day of the month that is so many months later."""
    place = first.year * 12 + first.month - 1 + months
    return date(place // 12, place % 12 + 1, 1)


def _back(day: date, number: int, unit: str) -> date:
    if unit in {"day", "week"}:
        return day - timedelta(days=number * (7 if unit == "week" else 1))
    place = day.year * 12 + day.month - 1 - number * (12 if unit == "year" else 1)
    if place < 12:
        raise ValueError("before the calendar")
    year, month = place // 12, place % 12 + 1
    return date(year, month, min(day.day, monthrange(year, month)[1]))


def _rule(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b{pattern}\b", re.IGNORECASE)


_WHICH = r"(?P<which>last|this|past|previous)\s+"
# "May" and "march" are also verbs, so a month needs a preposition before it or a year after it.
_BEFORE_MONTH = (
    r"(?P<which>in|last|this|past|since|before|after|until|till|of|during|by|around"
    r"|early|late|mid|beginning\s+of|end\s+of)[\s-]+"
)
_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], date], _Days]], ...] = (
    (_rule(r"(?P<y>(?:19|20)\d\d)-(?P<m>\d\d)-(?P<d>\d\d)"), _iso),
    (_rule(_MONTH + r"\s+" + _DAY + r"(?:(?:\s*,\s*|\s+)" + _YEAR + r")?"), _day_of_month),
    (
        _rule(_DAY + r"\s+(?:of\s+)?" + _MONTH + r"(?:(?:\s*,\s*|\s+)" + _YEAR + r")?"),
        _day_of_month,
    ),
    (_rule(r"(?P<which>)" + _MONTH + r"(?:\s*,\s*|\s+(?:of\s+)?)" + _YEAR), _month),
    (_rule(_BEFORE_MONTH + _MONTH + r"(?:\s+(?:of\s+)?" + _YEAR + r")?"), _month),
    (_rule(r"(?:in|during|since|before|after|until|of|back\s+in)\s+" + _YEAR), _year),
    (
        _rule(
            r"(?P<which>in|last|this|past|since|before|after|during)\s+(?:the\s+)?"
            r"(?P<season>spring|summer|fall|autumn|winter)(?:\s+(?:of\s+)?" + _YEAR + r")?"
        ),
        _season,
    ),
    (
        _rule(
            r"(?:the\s+day\s+before\s+yesterday|yesterday|today|tonight|last\s+night"
            r"|this\s+(?:morning|afternoon|evening))"
        ),
        _near_day,
    ),
    (
        _rule(r"(?P<which>last|this|past|previous|on)\s+(?P<weekday>" + "|".join(_WEEKDAYS) + r")"),
        _weekday,
    ),
    (_rule(_WHICH + r"weekend"), _weekend),
    (_rule(_WHICH + r"(?P<unit>week|month|year)"), _period),
    (_rule(_NUMBER + r"\s+" + _UNIT + r"\s+(?:ago|back|earlier)"), _ago),
    (_rule(r"(?:last|past|previous)\s+" + _NUMBER + r"\s+" + _UNIT), _last_so_many),
)
