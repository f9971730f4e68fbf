"""Connects expressions: "between A and B", "since A", and a day with a time of day."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import cache
from typing import NamedTuple

from strata.shared.search.time_grammar.english import ENGLISH
from strata.shared.search.time_grammar.matching import (
    SPACED,
    UNSPACED,
    Expression,
    Moments,
    day_of,
    has_han_or_kana,
    spans_of,
)
from strata.shared.search.time_grammar.readers import (
    around,
    days_of_month,
    recurrence,
    time_of_day,
    years,
)
from strata.shared.search.time_grammar.rules import Language, Reference, RuleMatch, Side

# Connecting words are directly before or after an expression.
_BESIDE = 40
_LIST = re.compile(r" *,? *(?:or|and|oder|und|ou|et|o|y|和|或者?|还是|と|や|か) *(?:in |im |en )?")
# "Desde el 3 al 7 de mayo" has an end.
_TWO_ENDS = frozenset({days_of_month, years})
# "3 am last night" is in the morning after.
_MORNING = 6
_NIGHT = re.compile("night|nacht|nuit|noche|[晚夜]")


class NamedRange(NamedTuple):
    """A time range and the position of its words; a bound of None is open."""

    begin: int
    end: int
    first: datetime | None
    last: datetime | None


def connected(
    expressions: Sequence[Expression], folded: str, reference: Reference
) -> Iterator[NamedRange]:
    """Yields the ranges that the expressions of a folded text name, in its order."""
    position = 0
    listed = False
    while position < len(expressions):
        expression = expressions[position]
        after = expressions[position + 1] if position + 1 < len(expressions) else None
        if after and (end := _connection_end(expression, after, folded)) is not None:
            # "From Monday to Friday" is said of every week.
            if not (expression.bare_weekday and after.bare_weekday):
                for first, last in _from_to(expression, after, reference):
                    yield NamedRange(expression.begin, end, first, last)
            position += 2
            listed = False
            continue
        ranges = list(_alone(expression, folded, reference, listed=listed))
        yield from ranges
        listed = bool(ranges and after and _LIST.fullmatch(folded[expression.end : after.begin]))
        position += 1


def _alone(
    expression: Expression, folded: str, reference: Reference, *, listed: bool
) -> Iterator[NamedRange]:
    """Yields the ranges of an expression that is not connected with another one.

    Args:
        expression: The expression.
        folded: The folded text.
        reference: The reference for reading the expression.
        listed: The expression follows another one and "or" or "and": "in May or June".
    """
    opening = _opening_of(expression, folded)
    if opening is None:
        if expression.weak and not listed:
            return
        expression = _with_time_of_day(expression, folded, reference)
        for first, last in expression.spans:
            yield NamedRange(expression.begin, expression.end, first, last)
        return
    side, begin, end = opening
    if expression.bare_weekday and side in {Side.BEFORE, Side.UNTIL}:
        return  # "before Monday" is said of the next one
    if side is Side.AFTER:
        expression = _ended(expression, reference)
    for first, last in expression.spans:
        if side is Side.SINCE:
            yield NamedRange(begin, end, first, None)
        elif side is Side.AFTER:
            yield NamedRange(begin, end, last, None)
        else:
            yield NamedRange(begin, end, None, first if side is Side.BEFORE else last)


def _ended(expression: Expression, reference: Reference) -> Expression:
    """Returns a recurring time that has ended: in July, "after the summer" means last year."""
    if (
        recurrence(expression.match)
        and expression.spans
        and expression.spans[-1][1] > reference.now
    ):
        before = _moved(day_of(expression.spans[0][0], reference.zone), -1)
        spans = spans_of(expression.match, replace(reference, today=before))
        return replace(expression, spans=spans or expression.spans)
    return expression


def _moved(day: date, days: int) -> date:
    """Returns a day that is a number of days later; the same day at the end of the calendar."""
    try:
        return day + timedelta(days=days)
    except OverflowError:
        return day


def _connection_end(expression: Expression, after: Expression, folded: str) -> int | None:
    """Returns the end of the words that connect two expressions; None if nothing does."""
    gap = folded[expression.end : after.begin]
    if len(gap) > _BESIDE or not (expression.spans and after.spans):
        return None
    before = folded[max(0, expression.begin - _BESIDE) : expression.begin]
    for language in _languages(folded):
        for connection in _connections(language):
            if connection.between.fullmatch(gap) and connection.before.search(before):
                end = connection.after.match(folded, after.end)
                if end is not None:
                    return end.end()
    return None


def _from_to(expression: Expression, after: Expression, reference: Reference) -> Iterator[Moments]:
    """Yields the ranges from the first to the second of two connected times.

    Without a year the second is the newest that has begun, and the first is the one before it:
    "between November and February" spans a new year.
    """
    firsts, lasts = expression.spans, after.spans
    zone = reference.zone
    if recurrence(expression.match):
        day = day_of(lasts[0][0], zone)
        firsts = spans_of(expression.match, replace(reference, today=day)) or firsts
    elif days := recurrence(after.match):
        day = day_of(firsts[0][0], zone)
        later = replace(reference, today=_moved(day, days - 1))
        lasts = spans_of(after.match, later) or lasts
    pairs = (
        zip(firsts, lasts, strict=False) if len(firsts) == len(lasts) else [(firsts[0], lasts[-1])]
    )
    for first, last in pairs:
        yield min(first[0], last[0]), max(first[1], last[1])


def _opening_of(expression: Expression, folded: str) -> tuple[Side, int, int] | None:
    """Returns the open side that the words beside an expression name, and all their positions."""
    if expression.match.rule.read in _TWO_ENDS:
        return None
    start = max(0, expression.begin - _BESIDE)
    before = folded[start : expression.begin]
    openings = _openings(spaced=True)
    if has_han_or_kana(folded):
        openings += _openings(spaced=False)
    for opening in openings:
        words = opening.before.search(before)
        end = opening.after.match(folded, expression.end) if words else None
        if words is None or end is None:
            continue
        return opening.side, start + words.start(), end.end()
    return None


def _with_time_of_day(expression: Expression, folded: str, reference: Reference) -> Expression:
    """Returns an expression of one day, narrowed to an adjacent time of day if there is one."""
    if len(expression.spans) != 1 or not _is_one_day(expression.spans[0]):
        return expression
    own = expression.match.language
    for language in (own,) if own.code else _languages(folded):
        for clock in _clocks(language):
            if match := clock.after.match(folded, expression.end):
                begin, end = expression.begin, match.end()
            elif match := clock.before.search(
                folded, max(0, expression.begin - _BESIDE), expression.begin
            ):
                begin, end = match.start(), expression.end
            else:
                continue
            span = _at(expression, RuleMatch(language, expression.match.rule, match), reference)
            if span is not None:
                return replace(expression, begin=begin, end=end, spans=(span,))
    return expression


def _at(day: Expression, clock: RuleMatch, reference: Reference) -> Moments | None:
    """Returns the time of a clock on a day; None if there is no such time."""
    there = day_of(day.spans[0][0], reference.zone)
    try:
        time = time_of_day(clock)
        if time.hour < _MORNING and _NIGHT.search(day.match.match.group()):
            there += timedelta(days=1)
        return around(datetime.combine(there, time, reference.zone))
    except (ValueError, OverflowError):
        return None


def _is_one_day(span: Moments) -> bool:
    """Returns whether a span is one day, also one on which the clocks change."""
    return timedelta(hours=20) < span[1] - span[0] < timedelta(hours=28)


class _Clock(NamedTuple):
    before: re.Pattern[str]
    after: re.Pattern[str]


class _Opening(NamedTuple):
    side: Side
    before: re.Pattern[str]
    after: re.Pattern[str]


class _Connection(NamedTuple):
    before: re.Pattern[str]
    between: re.Pattern[str]
    after: re.Pattern[str]


def _languages(folded: str) -> tuple[Language, ...]:
    return SPACED + UNSPACED if has_han_or_kana(folded) else SPACED


@cache
def _clocks(language: Language) -> tuple[_Clock, ...]:
    clocks = [language.expression(pattern) for pattern in language.clocks]
    if not language.spaced:
        return tuple(_Clock(re.compile(rf"{clock}$"), re.compile(clock)) for clock in clocks)
    return tuple(
        _Clock(re.compile(rf"(?<!\w)(?:{clock}) *,? *$"), re.compile(rf" *,? *(?:{clock})(?!\w)"))
        for clock in clocks
    )


@cache
def _openings(*, spaced: bool) -> tuple[_Opening, ...]:
    """Returns the openings; those of spaced languages that are one word are joined for speed."""
    if not spaced:
        return tuple(
            _Opening(
                opening.side, _at_end(language, opening.before), _at_begin(language, opening.after)
            )
            for language in UNSPACED
            for opening in language.openings
        )
    openings = []
    for side in Side:
        words = [
            opening.before
            for language in SPACED
            for opening in language.openings
            if opening.side is side and not opening.after
        ]
        openings.append(_Opening(side, _at_end(ENGLISH, "|".join(words)), re.compile("")))
    return (
        *openings,
        *(
            _Opening(
                opening.side, _at_end(language, opening.before), _at_begin(language, opening.after)
            )
            for language in SPACED
            for opening in language.openings
            if opening.after
        ),
    )


@cache
def _connections(language: Language) -> tuple[_Connection, ...]:
    space = " *,? *" if language.spaced else ""
    return tuple(
        _Connection(
            _at_end(language, connection.before),
            re.compile(rf"{space}(?:{language.expression(connection.between)}){space}"),
            _at_begin(language, connection.after),
        )
        for connection in language.connections
    )


def _at_end(language: Language, words: str) -> re.Pattern[str]:
    """Returns an expression for words at the end of a text; no words match always."""
    if not words:
        return re.compile("$")
    expression = language.expression(words)
    return re.compile(rf"(?<!\w)(?:{expression}) *$" if language.spaced else rf"(?:{expression})$")


def _at_begin(language: Language, words: str) -> re.Pattern[str]:
    """Returns an expression for words at a position of a text; no words match always."""
    if not words:
        return re.compile("")
    expression = language.expression(words)
    return re.compile(rf" *(?:{expression})(?!\w)" if language.spaced else expression)
