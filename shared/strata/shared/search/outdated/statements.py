"""Reads the statements of a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

from strata.shared.search.folded_text import fold, normalise
from strata.shared.search.languages import ENCODERS, probable_languages
from strata.shared.search.outdated.chinese import CHINESE
from strata.shared.search.outdated.english import ENGLISH
from strata.shared.search.outdated.french import FRENCH
from strata.shared.search.outdated.german import GERMAN
from strata.shared.search.outdated.japanese import JAPANESE
from strata.shared.search.outdated.language_rules import (
    ChangePhrase,
    LanguageRules,
    Predicate,
    Value,
)
from strata.shared.search.outdated.spanish import SPANISH
from strata.shared.search.outdated.values import measured
from strata.shared.search.unspaced_scripts import UNSPACED

RULES: Mapping[str, LanguageRules] = {
    rules.code: rules for rules in (ENGLISH, GERMAN, FRENCH, SPANISH, CHINESE, JAPANESE)
}
"""The rules by language."""

# Long texts seldom state one thing; of them only the beginning is read.
_READ_CHARS = 300
_LANGUAGE_CHARS = 120
_MOST_STATEMENTS = 10
_CLAUSE_CHARS = 160
_MOST_LANGUAGES = 2
_SPACED = [code for code, rules in RULES.items() if not rules.unspaced]

_SENTENCE = re.compile(r"(?:[^.!?\u3002\uff01\uff1f\n]|\.(?=\w))+[.!?\u3002\uff01\uff1f]*")
_CLAUSE_END = re.compile(
    r"[,;:](?=\s)|[\uff0c\u3001\uff1b\uff1a]|(?<=[\u3040-\u9fff]),|\s[-\u2013\u2014]\s|[()]"
)
_QUESTION = re.compile(r"[?\uff1f]\s*$")
_CAPITALISED = re.compile(r"\b[^\W\d_a-z]\w*")
_WORD = re.compile(r"\w+")
_ORNAMENT = re.compile(r"[^\w\s'€$£¥%#:.,/<>@+-]|(?<!\d)[.,:]|[.,:](?!\d)")


@dataclass(frozen=True, slots=True)
class ClauseSpan:
    """A part of a clause.

    Attributes:
        text: Its folded text.
        terms: Its stems without stop words; in scripts without spaces the pairs of characters.
    """

    text: str = ""
    terms: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement of a clause.

    Attributes:
        text: The sentence, as it was written.
        clause: The folded clause without the words that do not count.
        terms: The terms of the clause; in scripts without spaces also the single characters.
        rules: The language.
        capitals: The capitalised words of the sentence, folded.
        by_speaker: The speaker is one of those whom the clause is about.
        current: It says that it holds from now on.
        qualified: It holds at some times only.
        negated: It has a word of negation.
        predicate: The form of statement; None if none matches.
        change: How it names something that no longer holds, or holds again; None if it does not.
        gone: The thing that no longer holds, or holds again.
        subject: Its subject.
        is_speaker: The speaker is the subject.
        owner: The word that says that the subject belongs to somebody else.
        value: Its value.
    """

    text: str
    clause: str
    terms: frozenset[str]
    rules: LanguageRules
    capitals: frozenset[str]
    by_speaker: bool = False
    current: bool = False
    qualified: bool = False
    negated: bool = False
    predicate: Predicate | None = None
    change: ChangePhrase | None = None
    gone: ClauseSpan = ClauseSpan()
    subject: ClauseSpan = ClauseSpan()
    is_speaker: bool = False
    owner: str = ""
    value: ClauseSpan = ClauseSpan()

    @property
    def measured(self) -> Mapping[str, frozenset[str]]:
        """The numbers and times of the clause, by kind."""
        return measured(self.clause, self.rules)

    @property
    def has_form(self) -> bool:
        """Whether it has a form that can replace another statement."""
        return self.predicate is not None or self.change is not None or self.current


def statements_of(text: str) -> tuple[Statement, ...]:
    """Returns the statements at the beginning of a text.

    Questions, conditions, wishes, plans and statements about the past are none.
    """
    if len(text) > _READ_CHARS:
        # The last sentence is not whole.
        text = "".join(_SENTENCE.findall(text[:_READ_CHARS])[:-1])
    probable = probable_languages(text[:_LANGUAGE_CHARS])
    codes = [code for code in RULES if code in probable][:_MOST_LANGUAGES] or _SPACED
    read = (
        statement
        for code in codes
        for sentence in _SENTENCE.findall(text)
        for statement in _of_sentence(sentence, RULES[code])
    )
    return tuple(islice(read, _MOST_STATEMENTS))


def _of_sentence(sentence: str, rules: LanguageRules) -> list[Statement]:
    sentence = normalise(sentence.strip())
    if _QUESTION.search(sentence):
        return []
    folded = fold(sentence)
    for pattern, replacement in rules.compiled.rewritten:
        folded = pattern.sub(replacement, folded)
    clauses = [_clean(part, rules) for part in _CLAUSE_END.split(folded)]
    if any(map(rules.compiled.unsure.search, clauses)):
        return []
    capitals = frozenset(fold(word) for word in _CAPITALISED.findall(sentence))
    return [
        statement
        for clause in clauses
        if len(clause) <= _CLAUSE_CHARS
        and (statement := _statement(sentence, clause, capitals, rules)) is not None
    ]


def _clean(part: str, rules: LanguageRules) -> str:
    """Returns a clause without ornaments, its words separated and surrounded by single spaces."""
    words = _ORNAMENT.sub(" ", part).split()
    return "".join(words) if rules.unspaced else _padded(" ".join(words))


def _padded(text: str) -> str:
    return f" {text.strip()} "


def _statement(
    sentence: str, raw: str, capitals: frozenset[str], rules: LanguageRules
) -> Statement | None:
    compiled = rules.compiled
    clause = compiled.passed_over.sub("", raw)
    whole = _span(clause, rules)
    if not whole.terms:
        return None
    plain = Statement(
        text=sentence,
        clause=clause,
        terms=whole.terms | frozenset(clause) if rules.unspaced else whole.terms,
        rules=rules,
        capitals=capitals,
        by_speaker=bool(compiled.by_speaker.search(clause)),
        current=bool(compiled.current.search(raw)),
        qualified=bool(compiled.qualified.search(clause)),
        negated=bool(compiled.negated.search(clause)),
    )
    return _with_change(plain) or _with_predicate(plain) or plain


def _with_change(plain: Statement) -> Statement | None:
    """Returns the statement with what no longer holds; None if it names nothing like that."""
    rules = plain.rules
    for change, form in rules.compiled.changes:
        if match := form.search(plain.clause):
            groups = match.groupdict("")
            gone = _padded(" ".join(f"{groups['o']} {groups.get('o2', '')}".split()))
            gone = rules.compiled.trailing.sub(" ", gone)
            if not _span(rules.compiled.vague.sub("", gone), rules).terms:
                continue
            subject = _padded(groups.get("s", ""))
            # "Quit smoking." is about the speaker, too.
            bare = "s" in groups and not groups["s"].strip()
            return replace(
                plain,
                change=change,
                gone=_span(gone, rules),
                subject=_span(subject, rules),
                is_speaker=_is_speaker(subject, rules),
                value=_span(groups.get("v", ""), rules),
                by_speaker=plain.by_speaker or bare,
            )
    return None


def _with_predicate(plain: Statement) -> Statement | None:
    """Returns the statement with its subject and value; None if no form matches."""
    rules, compiled = plain.rules, plain.rules.compiled
    for predicate, form in compiled.predicates:
        if match := form.search(plain.clause):
            groups = match.groupdict("")
            subject = _padded(groups.get("s") or plain.clause[: match.start()])
            value = _padded(groups.get("v") or plain.clause[match.end() :])
            # The first word is always part of the value.
            if end := compiled.value_end.search(value, 1):
                value = value[: end.start()]
            if predicate.value is Value.PLACE and not _is_place(value, plain):
                continue
            if predicate.changed:
                subject = _thing(subject, rules)
            owner = compiled.others.search(subject)
            return replace(
                plain,
                predicate=predicate,
                subject=_span(subject, rules),
                is_speaker=predicate.speaker or _is_speaker(subject, rules),
                owner=owner.group() if owner else "",
                value=_span(value, rules),
            )
    return None


def _thing(subject: str, rules: LanguageRules) -> str:
    """Returns the thing in "I am testing my camera" if that is the subject of what follows."""
    speaker = rules.compiled.speaker.search(subject)
    thing = rules.compiled.owned.search(subject, speaker.end()) if speaker else None
    return subject[thing.start() :] if thing else subject


def _is_place(value: str, statement: Statement) -> bool:
    """Returns whether a value is the name of a place, as far as the script tells."""
    rules, value = statement.rules, value.strip()
    if measured(value, rules) or rules.compiled.no_value.match(value):
        return False
    return rules.unspaced or value.split(" ", 1)[0] in statement.capitals


def _is_speaker(subject: str, rules: LanguageRules) -> bool:
    return bool(rules.compiled.speaker.search(subject.strip() if rules.unspaced else subject))


def _span(text: str, rules: LanguageRules) -> ClauseSpan:
    text = text.strip()
    if rules.unspaced:
        pairs = {
            run[at : at + 2] for run in UNSPACED.findall(text) for at in range(max(1, len(run) - 1))
        }
        return ClauseSpan(text, frozenset(pairs | {*_WORD.findall(UNSPACED.sub(" ", text))}))
    stems = {_stem(word, rules.code) for word in _WORD.findall(text)}
    return ClauseSpan(text, frozenset(stems - {""}))


@lru_cache(maxsize=16_384)
def _stem(word: str, language: str) -> str:
    """Returns the stem of a word, as a number of the encoder; empty for a stop word."""
    return ",".join(map(str, ENCODERS[language].embed_query(word).indices))
