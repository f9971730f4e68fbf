"""The rules of a language: its patterns for facts, for changes and for ends of facts.

All patterns are matched against a folded clause (`folded_text.fold`) without the words of
`passed_over`. In languages with spaces there is one before, between and behind its words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

NEVER = "(?!)"
"""A pattern that matches nothing."""


class Value(Enum):
    """Which values of a predicate are compared."""

    ATTRIBUTE = "attribute"
    """The subject decides: a property has one value, and one person has a role; of other subjects
    only numbers, times and days are compared."""
    PLACE = "place"
    """The name of a place."""
    ANY = "any"
    """A few words."""


class ChangePhrase(Enum):
    """How a statement names what no longer holds, or holds again."""

    ENDED = "ended"
    """Something has ended, as in "I no longer smoke"."""
    RESUMED = "resumed"
    """Something that had ended holds again, as in "I smoke again"."""
    REPLACED = "replaced"
    """An old value is replaced, as in "We switched from tea to coffee"."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A form of statement.

    Attributes:
        name: The stated property; values of predicates with the same name are compared.
        pattern: The words of the predicate. The subject is the text before them, or their group
            `s`; the value is the text after them, or their group `v`.
        value: Which values are compared.
        changed: The words themselves say that the value has changed.
        speaker: Their verb is in the first person, and the speaker need not be named.
    """

    name: str
    pattern: str
    value: Value = Value.ATTRIBUTE
    changed: bool = False
    speaker: bool = False


@dataclass(frozen=True, eq=False)
class LanguageRules:
    """A language.

    Attributes:
        code: ISO 639-1 code.
        speaker: The speaker as the subject; searched in the text before a predicate.
        by_speaker: The speaker as a subject anywhere in a clause; as `speaker` if empty.
        owned: Words with which a thing begins: "I am testing my camera, which has ...".
        others: Words that say that a subject belongs to somebody else ("her").
        predicates: The forms of statement; the first one that matches counts.
        ended: Statements that something has ended: group `o`, what has ended; and `s`, the subject.
        resumed: Statements that something holds again, with the same groups.
        replaced: Statements that name the old and the new value, in the groups `o` and `v`.
        current: Words that say that a statement holds from now on.
        unsure: Words of conditions, wishes, plans, additions, the past and single occasions.
            Such statements replace nothing, and nothing replaces them.
        qualified: Words that restrict a statement to some time, so that others hold beside it.
        negated: Words of negation.
        properties: Properties with a single value ("password"), as words of a subject.
        roles: Roles that one person has at a time, as words of a subject.
        no_value: The beginning of a phrase that is not a value of a property ("too short").
        value_end: The first word behind a value.
        trailing: Words that may follow the name of what has ended, such as a time.
        vague: Verbs that do not identify what has ended: "I can't go any more."
        passed_over: Words without which statements are compared.
        weekdays: The names of the days of the week, from Monday.
        months: The names of the months, from January.
        hour: The forms of a time of day: one or two groups of numbers, and a group `pm`.
        rewritten: Replacements that are made first, such as the long forms of contractions.
        unspaced: It puts no spaces between words.
    """

    code: str
    predicates: tuple[Predicate, ...]
    ended: tuple[str, ...]
    resumed: tuple[str, ...]
    replaced: tuple[str, ...]
    current: str
    unsure: str
    speaker: str = NEVER
    by_speaker: str = ""
    owned: str = NEVER
    others: str = NEVER
    qualified: str = NEVER
    negated: str = NEVER
    properties: str = NEVER
    roles: str = NEVER
    no_value: str = NEVER
    value_end: str = NEVER
    trailing: str = NEVER
    vague: str = NEVER
    passed_over: str = NEVER
    weekdays: tuple[str, ...] = ()
    months: tuple[str, ...] = ()
    hour: str = NEVER
    rewritten: tuple[tuple[str, str], ...] = ()
    unspaced: bool = False

    @cached_property
    def compiled(self) -> CompiledRules:
        """The rules as compiled patterns."""
        return CompiledRules(
            predicates=tuple(
                (predicate, self._words(predicate.pattern)) for predicate in self.predicates
            ),
            changes=tuple(
                (change, re.compile(form))
                for change, forms in (
                    (ChangePhrase.ENDED, self.ended),
                    (ChangePhrase.RESUMED, self.resumed),
                    (ChangePhrase.REPLACED, self.replaced),
                )
                for form in forms
            ),
            rewritten=tuple((re.compile(pattern), text) for pattern, text in self.rewritten),
            no_value=re.compile(self.no_value),
            hour=re.compile(self.hour),
            by_speaker=(
                re.compile(self.by_speaker) if self.by_speaker else self._words(self.speaker)
            ),
            **{name: self._words(getattr(self, name)) for name in _WORD_RULES},
        )

    def _words(self, pattern: str) -> re.Pattern[str]:
        """Returns a pattern that matches whole words only, if the language has spaces."""
        # A clause begins and ends with a space; a literal prefix makes the search fast.
        whole = pattern if self.unspaced or pattern == NEVER else f" (?:{pattern})(?= )"
        return re.compile(whole)


_WORD_RULES = (
    "current", "unsure", "speaker", "owned", "others", "qualified", "negated", "properties",
    "roles", "value_end", "trailing", "vague", "passed_over",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompiledRules:
    """The rules of a language as compiled patterns; the names are as in `LanguageRules`."""

    predicates: tuple[tuple[Predicate, re.Pattern[str]], ...]
    changes: tuple[tuple[ChangePhrase, re.Pattern[str]], ...]
    rewritten: tuple[tuple[re.Pattern[str], str], ...]
    current: re.Pattern[str]
    unsure: re.Pattern[str]
    speaker: re.Pattern[str]
    by_speaker: re.Pattern[str]
    owned: re.Pattern[str]
    others: re.Pattern[str]
    qualified: re.Pattern[str]
    negated: re.Pattern[str]
    properties: re.Pattern[str]
    roles: re.Pattern[str]
    no_value: re.Pattern[str]
    value_end: re.Pattern[str]
    trailing: re.Pattern[str]
    vague: re.Pattern[str]
    passed_over: re.Pattern[str]
    hour: re.Pattern[str]
