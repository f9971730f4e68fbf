"""Finds texts that state an older value of something that a newer text states too.

A wrong mark makes a model distrust a fact that holds, so a pair counts only if its form leaves
little doubt: the same predicate about the same subject with another value, a statement that
something changed or ended, or one that names what it replaces. Decision 0149 has the
measurements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from strata.shared.search.outdated.language_rules import ChangePhrase, Value
from strata.shared.search.outdated.statements import Statement, statements_of

_MOST_SUBJECT_TERMS = 5
_MOST_ENDED_TERMS = 5
# Maximum number of words of a statement beyond the words of the thing that has ended.
_MORE_TERMS = 4
_MOST_VALUE_TERMS = 5
_SHORT_CHARS = 20


class DatedText(NamedTuple):
    """A text with its speaker and time.

    Attributes:
        id: Its id.
        text: The text.
        speaker: Who says it; statements of different speakers are not compared.
        time: Time of the text, in seconds since 1970.
    """

    id: str
    text: str
    speaker: str
    time: float


class Outdated(NamedTuple):
    """The newer statement that replaces an older one.

    Attributes:
        newer_id: The text with the newer statement.
        newer_time: Its time, in seconds since 1970.
        statement: The older sentence.
        newer_statement: The newer sentence.
    """

    newer_id: str
    newer_time: float
    statement: str
    newer_statement: str


def possibly_outdated(texts: Sequence[DatedText]) -> dict[str, Outdated]:
    """Returns the texts with a statement that a newer one replaces, by id.

    Args:
        texts: The texts, in any order. Of several newer ones the newest counts.
    """
    speakers = Counter(text.speaker for text in texts)
    read = [(text, statements_of(text.text)) for text in texts if speakers[text.speaker] > 1]
    read.sort(key=lambda pair: -pair[0].time)
    marks: dict[str, Outdated] = {}
    for newer, statements in read:
        forms = [statement for statement in statements if statement.has_form]
        for older, old_statements in read:
            comparable = older.time < newer.time and older.speaker == newer.speaker
            if comparable and forms and older.id not in marks:
                pairs = product(forms, old_statements)
                if pair := next((pair for pair in pairs if replaces(*pair)), None):
                    marks[older.id] = Outdated(newer.id, newer.time, pair[1].text, pair[0].text)
    return marks


def replaces(new: Statement, old: Statement) -> bool:
    """Returns whether a statement replaces an older one of the same speaker."""
    if new.rules is not old.rules:
        return False
    if new.change is ChangePhrase.RESUMED:
        return _resumes(new, old)
    if old.change is ChangePhrase.ENDED:
        return False
    if new.change is ChangePhrase.ENDED:
        return _ends(new, old)
    if new.change is ChangePhrase.REPLACED:
        return _names_old_value(new, old)
    return _states_other_value(new, old) or _denies(new, old)


def _ends(new: Statement, old: Statement) -> bool:
    ended_terms = new.gone.terms if new.by_speaker else new.gone.terms | new.subject.terms
    return (
        # "Nuri can't any more" does not say what has ended.
        (new.by_speaker or len(ended_terms) > 1)
        and len(ended_terms) <= _MOST_ENDED_TERMS
        and ended_terms <= old.terms
        and not old.negated
        and _same_person(new, old, ended_terms)
    )


def _resumes(new: Statement, old: Statement) -> bool:
    resumed_terms = new.gone.terms if new.by_speaker else new.gone.terms | new.subject.terms
    ended = old.change is ChangePhrase.ENDED or old.negated
    return ended and resumed_terms <= old.terms and _same_person(new, old, resumed_terms)


def _same_person(new: Statement, old: Statement, terms: frozenset[str]) -> bool:
    if new.rules.unspaced:
        others = new.rules.compiled.others
        if _matched(others, new.clause) != _matched(others, old.clause):
            return False
        return new.subject.text in old.clause and (
            bool(new.subject.text) or not old.subject.text or old.by_speaker
        )
    return new.by_speaker == old.by_speaker and _is_short(old, terms)


def _matched(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group() if match else ""


def _is_short(statement: Statement, terms: frozenset[str]) -> bool:
    """Returns whether a clause says little more than some terms."""
    if statement.rules.unspaced:
        return len(statement.clause) <= _SHORT_CHARS
    return len(statement.terms - terms) <= _MORE_TERMS


def _names_old_value(new: Statement, old: Statement) -> bool:
    old_terms = new.gone.terms
    if not old_terms <= old.terms or old.negated or new.value.terms <= old.terms:
        return False
    if old.predicate is not None:
        return old_terms <= old.value.terms
    return old.by_speaker and _is_short(old, old_terms)


def _states_other_value(new: Statement, old: Statement) -> bool:
    form = new.predicate
    if form is None or new.negated or old.negated:
        return False
    if form.value is not Value.ATTRIBUTE:
        return _moved_on(new, old)
    if len(new.subject.terms) > _MOST_SUBJECT_TERMS * (2 if new.rules.unspaced else 1):
        return False
    if form.changed and new.subject.terms:
        about = new.subject.terms <= old.terms and new.owner == old.owner
        # "The meeting" need not be "the meeting with Lisa".
        about = about and (old.is_speaker or old.subject.terms <= new.subject.terms)
        same = _same_subject(new, old)
        return about and (_other_measure(new, old) or (same and _other_property(new, old)))
    if old.predicate is None or old.predicate.name != form.name or not _same_subject(new, old):
        return False
    if not new.subject.terms:
        return form.name != "is" and _other_measure(new, old)
    if new.rules.compiled.roles.search(f" {new.subject.text} "):
        return new.current and _is_name(new) and _is_name(old) and _differ(new, old)
    if new.rules.compiled.properties.search(f" {new.subject.text} "):
        return _other_property(new, old)
    return new.current and _other_measure(new, old)


def _moved_on(new: Statement, old: Statement) -> bool:
    """Returns whether a statement says that, for example, its subject lives elsewhere now."""
    form, other = new.predicate, old.predicate
    if form is None or other is None or form.name != other.name:
        return False
    if not (new.current or form.changed) or new.qualified or old.qualified:
        return False
    return _same_subject(new, old) and _differ(new, old)


def _same_subject(new: Statement, old: Statement) -> bool:
    if new.predicate is None or old.predicate is None or new.owner != old.owner:
        return False
    if new.is_speaker or old.is_speaker:
        # "I" has no properties; the words beside it are another clause.
        alone = new.predicate.value is not Value.ATTRIBUTE or not (
            new.subject.terms or old.subject.terms
        )
        return alone and new.is_speaker and old.is_speaker
    return new.subject.terms == old.subject.terms


def _differ(new: Statement, old: Statement) -> bool:
    values = (new.value.terms, old.value.terms)
    if not all(values) or max(map(len, values)) > _MOST_VALUE_TERMS:
        return False
    return not (values[0] <= values[1] or values[1] <= values[0])


def _other_property(new: Statement, old: Statement) -> bool:
    if new.measured and old.measured:
        return _other_measure(new, old)
    no_value = new.rules.compiled.no_value
    if no_value.match(new.value.text) or no_value.match(old.value.text):
        return False
    return _differ(new, old)


def _other_measure(new: Statement, old: Statement) -> bool:
    """Returns whether a number, a time or a day differs between both."""
    return any(
        not values & old.measured[kind]
        for kind, values in new.measured.items()
        if kind in old.measured
    )


def _is_name(statement: Statement) -> bool:
    """Returns whether the value is a name, as far as the script tells."""
    if statement.rules.unspaced:
        return not statement.rules.compiled.no_value.search(statement.value.text)
    first = statement.value.text.split(" ", 1)[0]
    return first in statement.capitals


def _denies(new: Statement, old: Statement) -> bool:
    """Returns whether one statement is the other one with a negation."""
    if new.negated == old.negated or not new.current:
        return False
    negated = new.rules.compiled.negated
    return _without(new.clause, negated) == _without(old.clause, negated)


def _without(clause: str, pattern: re.Pattern[str]) -> str:
    return " ".join(pattern.sub(" ", clause).split())
