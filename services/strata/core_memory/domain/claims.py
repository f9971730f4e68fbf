"""What a line says of a subject, so far as two lines can be seen to contradict each other.

Understood are titled values ("City: Berlin"), attributes ("Sam's favourite colour is
blue"), verbs that take one object at a time ("lives in", "works at"), states that
exclude each other ("single", "married"), numbers ("is 30 years old"), and the same
sentence with and without a negation. All else is taken to say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from strata.core_memory.domain.lines import Line

_MOST_CHARS = 300
_PRONOUNS = frozenset(
    ("i", "he", "she", "it", "they", "we", "you", "this", "that", "these", "those", "there", "who")
)
_OWNERS = frozenset(("my", "his", "her", "their", "our", "your", "its"))
# A sentence about the past or about a part of the time does not contradict another one.
_DATED = re.compile(
    r"\b(?:was|were|used to|former(?:ly)?|previously|until|since|before|after|sometimes|often"
    r"|usually|when|if|unless|except|during|may|might|maybe|perhaps|but)\b"
)
_TITLED = re.compile(r"(?P<subject>[^\W\d_][\w '/-]{0,39}): +(?P<object>\S.*)")
# Titles under which several different lines are usual.
_LIST_TITLES = """
    note notes todo tip warning example examples q a question answer user assistant human ai
    important see also remember fact facts update task tasks goal goals like likes dislike
    dislikes hobby hobbies interest interests skill skills idea ideas event events done link
    project projects friend friends child children pet pets language languages allergy
    allergies rule rules preference preferences
"""
_LISTS = frozenset(_LIST_TITLES.split())
_ONE_AT_A_TIME = re.compile(
    r"(?P<subject>.{1,60}?) (?P<verb>lives (?:in|at)|works (?:at|for|as)|(?:was|is) born (?:in|on)"
    r"|is married to|is called|is named|is located in|is based in|is in|comes from|is from"
    r"|weighs|costs) (?P<object>.+)"
)
_IS = re.compile(r"(?P<subject>.{1,60}?) (?P<verb>is|are) (?P<object>.+)")
# What somebody or something has one of.
_ATTRIBUTE = re.compile(
    r"'s? \w|\b(?:my|his|her|their|our|your|its) \w|^the \w+ of "
    r"|\bfavou?rite \w|\b(?:name|age|birthday|job|city|address|e-?mail|phone number|time ?zone"
    r"|deadline|password|budget|version)$"
)
_NUMBER = re.compile(r"\d[\d.,]*")
_EXCLUSIVE = tuple(
    frozenset(group.split("|"))
    for group in (
        "single|married|divorced|widowed|engaged",
        "vegetarian|vegan|pescatarian|an omnivore|a vegetarian|a vegan|a pescatarian",
        "left-handed|right-handed",
        "alive|dead",
        "on|off",
        "open|closed",
        "enabled|disabled",
        "active|inactive",
        "true|false",
        "employed|unemployed|retired",
        "monday|tuesday|wednesday|thursday|friday|saturday|sunday",
    )
)
_NEGATIONS = (
    (re.compile(r"\b(?:do(?:es)?(?: not|n't)|never|no longer) (\w+)"), r"\1"),
    (re.compile(r"\b(is|are|am|can|has|have|will|should|must)(?: not|n't)\b"), r"\1"),
    (re.compile(r"\bcannot\b"), "can"),
    (re.compile(r"\bdislikes?\b"), "like"),
    (re.compile(r"\bhates?\b"), "like"),
)
_LIKING = re.compile(r"\b(?:really |very much )?(?:likes?|loves?|enjoys?)\b")


@dataclass(frozen=True, slots=True)
class Claim:
    """Something said of a subject.

    Attributes:
        subject: Of what, and in which respect: only claims of equal ones can contradict.
        object: What is said.
        named: The subject is called by a name that means the same everywhere.
    """

    subject: tuple[str, ...]
    object: str
    named: bool


def claims_of(line: Line) -> Iterator[Claim]:
    """Yields what a line says."""
    text = line.plain
    if line.heading or len(text) > _MOST_CHARS or _DATED.search(text):
        return
    titled = _TITLED.fullmatch(text)
    if titled:
        if titled["subject"] not in _LISTS:
            yield Claim(("title", titled["subject"]), titled["object"], named=False)
        return
    plain, negations = _without_negation(text)
    yield Claim(("polarity", plain), "no" if negations % 2 else "yes", named=_is_named(text))
    if not negations:
        yield from _sentence(text)


def contradict(one: Claim, other: Claim) -> bool:
    """Says whether two claims of equal subjects cannot both hold."""
    kind, a, b = one.subject[0], one.object, other.object
    if a == b:
        return False
    match kind:
        case "polarity":
            return True
        case "state":
            return _exclude_each_other(a, b)
        case _:
            # "Berlin" and "Berlin, Germany" are the same place.
            return a not in b and b not in a


def _sentence(text: str) -> Iterator[Claim]:
    found = _ONE_AT_A_TIME.fullmatch(text)
    if found:
        subject, verb = found["subject"], found["verb"]
        yield Claim(("verb", subject, verb), found["object"], named=_is_named(text))
        return
    found = _IS.fullmatch(text)
    if found:
        kind = "attribute" if _ATTRIBUTE.search(found["subject"]) else "state"
        yield Claim((kind, found["subject"]), found["object"], named=_is_named(text))


def _exclude_each_other(one: str, other: str) -> bool:
    if any(one in group and other in group for group in _EXCLUSIVE):
        return True
    numbers = _NUMBER.findall(one), _NUMBER.findall(other)
    same_words = _NUMBER.sub("#", one) == _NUMBER.sub("#", other)
    return same_words and numbers[0] != numbers[1]


def _without_negation(text: str) -> tuple[str, int]:
    """Returns a sentence as if it were not negated, verbs in one form, and how often it was."""
    count = 0
    for pattern, positive in _NEGATIONS:
        text, found = pattern.subn(positive, text)
        count += found
    text = _LIKING.sub("like", text)
    return " ".join(_stem(word) for word in text.split()), count


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _is_named(text: str) -> bool:
    first = text.partition(" ")[0]
    return first not in _OWNERS and first.partition("'")[0] not in _PRONOUNS
