"""The definition of a language: its time words, and the rules that use them.

A rule is a regular expression with slots: `{weekday}` matches any word of the lexicon of that name
and captures it. A slot that is repeated ends in a digit (`{day2}`). Rules are matched against
folded text (`folded_text.fold`), so they are in lower case and without accents. A space matches one
or more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from functools import cached_property
from typing import NamedTuple
from zoneinfo import ZoneInfo

from strata.shared.search.folded_text import fold
from strata.shared.search.languages import probable_languages
from strata.shared.search.time_grammar.calendar_spans import Span
from strata.shared.search.time_grammar.regions import Region, region_of

Lexicon = Mapping[str, int]

FEW = -1
"""Value of "a few" and "several" in a lexicon of numbers: two to five."""

NOT_A_COUNT = (
    r"(?![/-]\w|\.\d| ?(?:%|[$€£¥]|(?:words|characters|letters|lines|pages|tokens|people|users"
    r"|items|calories|kcal|steps|hours|minutes|seconds|ms|times|km|miles|met(?:er|re)s?|m|kg|g"
    r"|grams|euros?|dollars|pounds|usd|eur|gbp|mb|gb|rpm|worter[n]?|zeichen|stuck|kalorien"
    r"|schritten?|seiten|zeilen|mots|lignes|pas|fois|palabras|paginas|calorias|pasos|lineas"
    r"|veces|pesos)(?!\w)))"
)
"""Follows four digits that are a year: "in 2000 words" and "2026-03" do not name one."""

UNITS = ("minute", "hour", "day", "week", "month", "quarter", "year")
"""Names of the units of time; the lexicons `unit` and `period` have their positions."""

MINUTE, HOUR, DAY, WEEK, MONTH, QUARTER, YEAR = range(len(UNITS))


def numbered(*names: str, start: int = 0) -> dict[str, int]:
    """Returns a lexicon that numbers its words; the names of one number are separated by "|"."""
    return {name: number for number, group in enumerate(names, start) for name in group.split("|")}


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference for reading an expression.

    Attributes:
        now: The time of the question, in the time zone of the user.
        today: The day that recurring times are resolved against: usually the day of `now`.
        zone: The time zone of the user.
        text: The folded text of the question.
    """

    now: datetime
    today: date
    zone: ZoneInfo
    text: str

    @property
    def languages(self) -> frozenset[str]:
        """The probable languages of the text; none if they are unknown."""
        return probable_languages(self.text)

    @property
    def region(self) -> Region:
        """The region of the time zone."""
        return region_of(self.zone.key)


Reader = Callable[["RuleMatch", Reference], Sequence[Span]]
"""Returns the spans that a match means: several if it is ambiguous, none if it is in the future.

Raises ValueError or OverflowError where there is no such day.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A form of expression.

    Attributes:
        pattern: The regular expression with slots.
        read: Returns the time spans of a match.
        which: The occurrence that is meant, where no slot `which` says so: 0 this, -1 the last, -2
            the one before the last; None the newest that has begun.
        weak: The words are an expression only beside a connecting word, as "May" in "since May".
        only_likely: The rule holds only in texts that are probably of this language.
    """

    pattern: str
    read: Reader
    which: int | None = None
    weak: bool = False
    only_likely: bool = False


class Side(Enum):
    """Which side of a time a word such as "since" leaves open."""

    SINCE = "since"
    AFTER = "after"
    BEFORE = "before"
    UNTIL = "until"


class Opening(NamedTuple):
    """Words `before` and `after` a time that make it a range with an open side."""

    side: Side
    before: str = ""
    after: str = ""


class RangeWords(NamedTuple):
    """Words `before` A, `between` A and B, and `after` B that make one range of two times."""

    before: str
    between: str
    after: str = ""


@dataclass(frozen=True, eq=False)
class Language:
    """The words and rules of a language.

    Attributes:
        code: ISO 639-1.
        lexicons: Words and their values by the name of the slot.
        rules: The forms of expression.
        openings: Words such as "since".
        connections: Words such as "between" and "and".
        clocks: Forms of a time of day, with the slots `hour`, `minute`, `half_day`, `clock_word`.
        numerals: Matches numbers other than digits that `parse_number` reads.
        parse_number: Returns the value of a number that is in no lexicon.
        spaced: Words are separated by spaces.
    """

    code: str
    lexicons: Mapping[str, Lexicon]
    rules: Sequence[Rule]
    openings: Sequence[Opening] = ()
    connections: Sequence[RangeWords] = ()
    clocks: Sequence[str] = ()
    numerals: str = ""
    parse_number: Callable[[str], int] = int
    spaced: bool = True

    @cached_property
    def words(self) -> Mapping[str, Lexicon]:
        """The lexicons with folded words."""
        return {
            slot: {fold(word): value for word, value in lexicon.items()}
            for slot, lexicon in self.lexicons.items()
        }

    @cached_property
    def compiled_rules(self) -> tuple[CompiledRule, ...]:
        """The rules, each with its triggers."""
        return tuple(CompiledRule(self, rule) for rule in self.rules)

    def triggers(self) -> Iterator[tuple[str, str]]:
        """Yields words and the slots that they can fill: of a phrase, its longest word."""
        for slot, lexicon in self.words.items():
            for phrase in lexicon:
                yield max(WORD.findall(phrase), key=len, default=""), slot

    def expression(self, pattern: str) -> str:
        """Returns the regular expression of a pattern with slots, without word boundaries."""
        text = "".join(letter if letter.isascii() else fold(letter) for letter in pattern)
        text = re.sub(r"\{([a-z_]+)(\d?)\}", lambda slot: self._slot(slot[1], slot[2]), text)
        # The width of a lookbehind is fixed.
        return re.sub(
            r"\(\?<[!=][^()]*\)| (?![*+?{])", lambda part: part[0] if part[0] != " " else " +", text
        )

    def compile(self, pattern: str) -> re.Pattern[str]:
        """Returns the compiled expression of a pattern that matches whole words."""
        text = self.expression(pattern)
        return re.compile(rf"(?<!\w)(?:{text})(?!\w)" if self.spaced else text)

    def _slot(self, name: str, number: str) -> str:
        expressions = [_DIGITS[name]] if name in _DIGITS else []
        if name in _DIGITS and name != "year" and self.numerals:
            expressions.append(fold(self.numerals))
        words = sorted(self.words.get(name, ()), key=len, reverse=True)
        expressions += [re.escape(word).replace("\\ ", " ") for word in words]
        dot = r"(?:\.(?= ?\d))?" if name == "month" and self.spaced else ""
        # Not the end of "1.5" and "twenty-one".
        start = r"(?<![\d.,-])" if name == "number" and not number else ""
        return f"{start}(?P<{name}{number}>{'|'.join(expressions)}){dot}"


WORD = re.compile("[a-z0-9]+")
"""Matches a word that can trigger rules, in a folded text."""

_DIGITS = {
    "year": r"(?<!\d)(?:19|20)\d\d(?!\d)",
    "day": r"(?<!\d)[0-3]?\d(?!\d)",
    "number": r"\d{1,4}(?!\.?\d)",
    "hour": r"(?<!\d)[0-2]?\d(?!\d)",
    "minute": r"[0-5]\d",
}
# Slots whose words are common outside expressions of time, so that they trigger no rule.
_NO_TRIGGERS = frozenset({"number", "which", "day", "half_day", "hour", "minute", "words"})
_YEARS = frozenset({"year", "years"})


class CompiledRule:
    """A rule of a language, compiled when it is first tried.

    Attributes:
        language: The language.
        rule: The rule.
        triggers: Slots that a text must have words for; other texts need not be tried.
    """

    def __init__(self, language: Language, rule: Rule) -> None:
        self.rule = rule
        self.language = language
        slots = {
            (slot or group).rstrip("0123456789")
            for slot, group in re.findall(r"\{([a-z_]+\d?)\}|\(\?P<(\w+)>", rule.pattern)
        } - _NO_TRIGGERS
        # A year is often optional beside another slot.
        self.triggers = frozenset(slots - _YEARS or slots)

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return self.language.compile(self.rule.pattern)

    def matches(self, folded: str) -> Iterator[RuleMatch]:
        """Yields the matches in a folded text."""
        for match in self._compiled.finditer(folded):
            yield RuleMatch(self.language, self.rule, match)


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A match of a rule, with the values of its slots."""

    language: Language
    rule: Rule
    match: re.Match[str]

    @property
    def span(self) -> tuple[int, int]:
        """Positions of the words: of the group `words`, or of the whole match."""
        return self.match.span("words" if self.has("words") else 0)

    @property
    def which(self) -> int | None:
        """The occurrence that is meant (`Rule.which`)."""
        return self.value("which") if self.has("which") else self.rule.which

    def has(self, slot: str) -> bool:
        """Returns whether a slot of the rule matched."""
        return slot in self.match.re.groupindex and self.match[slot] is not None

    def value(self, slot: str) -> int:
        """Returns the value of a slot: the value in the lexicon, or the number itself.

        Words in the plural have their own slot: "two Fridays ago" fills `weekdays`.
        """
        slot = slot if self.has(slot) else f"{slot}s"
        text = " ".join(self.match[slot].split())
        lexicon = self.language.words.get(slot.rstrip("0123456789"), {})
        return lexicon[text] if text in lexicon else self.language.parse_number(text)
