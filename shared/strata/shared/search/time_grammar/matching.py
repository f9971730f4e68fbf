"""Finds the words of a text that name a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import cache
from zoneinfo import ZoneInfo

from strata.shared.search.languages import probable_languages
from strata.shared.search.time_grammar.chinese import CHINESE
from strata.shared.search.time_grammar.english import ENGLISH
from strata.shared.search.time_grammar.french import FRENCH
from strata.shared.search.time_grammar.german import GERMAN
from strata.shared.search.time_grammar.japanese import JAPANESE
from strata.shared.search.time_grammar.numeric_dates import NUMERIC_DATES
from strata.shared.search.time_grammar.readers import recurrence
from strata.shared.search.time_grammar.rules import WORD, CompiledRule, Reference, RuleMatch
from strata.shared.search.time_grammar.spanish import SPANISH

SPACED = (ENGLISH, GERMAN, FRENCH, SPANISH)
"""The languages that separate words by spaces."""

UNSPACED = (CHINESE, JAPANESE)
"""The languages without spaces."""

Moments = tuple[datetime, datetime]
"""The first moment of a time span and the moment after the last, in UTC."""

_HAN_OR_KANA = re.compile("[\u3041-\u30fa\u4e00-\u9fff]")
_YEAR = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")
_NUMERIC_DATE = re.compile(r"\d[-/.] ?\d")


@dataclass(frozen=True, slots=True)
class Expression:
    """Words that name a time.

    Attributes:
        begin: Position of the first character.
        end: Position after the last character.
        match: The match of the rule.
        spans: The times that are meant: several if it is ambiguous, none if it is in the future.
    """

    begin: int
    end: int
    match: RuleMatch
    spans: tuple[Moments, ...]

    @property
    def weak(self) -> bool:
        """Whether the words name a time only next to a connecting word."""
        return self.match.rule.weak

    @property
    def bare_weekday(self) -> bool:
        """Whether the words are only the name of a weekday, which can be of any week."""
        return self.match.has("weekday") and recurrence(self.match) > 0


def expressions_in(folded: str, reference: Reference) -> list[Expression]:
    """Returns the expressions in a folded text, in its order, without overlaps."""
    expressions = []
    for rule in _rules_for(folded):
        code = rule.language.code
        if rule.rule.only_likely and code not in (reference.languages or {code}):
            continue
        for match in rule.matches(folded):
            spans = spans_of(match, reference)
            if spans is not None:
                expressions.append(Expression(*match.span, match, spans))
    return _without_overlaps(expressions)


def spans_of(match: RuleMatch, reference: Reference) -> tuple[Moments, ...] | None:
    """Returns the times that a match means; None if there is no such day."""
    try:
        spans = match.rule.read(match, reference)
    except (ValueError, OverflowError):
        return None  # February 30, or 9,999,999 days ago
    moments = [
        (moment_of(first, reference.zone), moment_of(end, reference.zone)) for first, end in spans
    ]
    # A zone can skip a whole day (Samoa at the end of 2011).
    return tuple((start, end) for start, end in moments if start < end)


def moment_of(day: date, zone: ZoneInfo) -> datetime:
    """Returns the first moment of a day; a time with a zone is returned in UTC."""
    there = day if isinstance(day, datetime) else datetime.combine(day, time(), zone)
    try:
        return there.astimezone(UTC)
    except OverflowError:  # the first or the last day of the calendar
        return there.replace(tzinfo=UTC)


def day_of(moment: datetime, zone: ZoneInfo) -> date:
    """Returns the day of a moment in a zone."""
    try:
        return moment.astimezone(zone).date()
    except OverflowError:  # at either end of the calendar
        return moment.date()


def has_han_or_kana(text: str) -> bool:
    """Returns whether a text has characters of Chinese or Japanese."""
    return not text.isascii() and _HAN_OR_KANA.search(text) is not None


def _rules_for(folded: str) -> Iterator[CompiledRule]:
    """Yields the rules that can match: common questions have no word that triggers one."""
    if _NUMERIC_DATE.search(folded):
        yield from NUMERIC_DATES.compiled_rules
    if has_han_or_kana(folded):
        languages = probable_languages(folded)
        for language in UNSPACED:
            if language.code in languages:
                yield from language.compiled_rules
    slots: dict[str, set[str]] = {}
    triggers = _triggers()
    for word in WORD.findall(folded):
        for code, slot in triggers.get(word, ()):
            slots.setdefault(code, set()).add(slot)
    has_year = _YEAR.search(folded) is not None
    for language in SPACED:
        filled = slots.get(language.code, set()) | ({"year"} if has_year else set())
        if filled:
            for rule in language.compiled_rules:
                if rule.triggers <= filled:
                    yield rule


@cache
def _triggers() -> dict[str, tuple[tuple[str, str], ...]]:
    """Returns the words that trigger rules, with languages and slots."""
    triggers: dict[str, set[tuple[str, str]]] = {}
    for language in SPACED:
        for word, slot in language.triggers():
            triggers.setdefault(word, set()).add((language.code, slot))
    return {word: tuple(slots) for word, slots in triggers.items()}


def _without_overlaps(expressions: Sequence[Expression]) -> list[Expression]:
    """Returns the expressions that win over those that they overlap: the longest."""
    longest: list[Expression] = []
    cluster: list[Expression] = []
    for expression in sorted(
        expressions, key=lambda expression: (expression.begin, -expression.end, expression.weak)
    ):
        if cluster and expression.begin >= max(other.end for other in cluster):
            longest += _longest(cluster)
            cluster = []
        cluster.append(expression)
    return longest + _longest(cluster)


def _longest(cluster: Sequence[Expression]) -> list[Expression]:
    longest: list[Expression] = []
    for expression in sorted(
        cluster,
        key=lambda expression: (
            expression.begin - expression.end,
            expression.weak,
            expression.begin,
        ),
    ):
        if all(expression.end <= other.begin or expression.begin >= other.end for other in longest):
            longest.append(expression)
    return sorted(longest, key=lambda expression: expression.begin)
