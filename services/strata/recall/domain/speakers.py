"""Finds the speakers that a query names, and words the query as they would speak."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from strata.shared.search.unspaced_scripts import UNSPACED
from strata.shared.search.vectors.stop_words import without_stop_words

# A letter or digit of a script with spaces; next to one, a name is only a part of a word.
_LETTER = rf"[^\W{UNSPACED.pattern[1:-2]}]"
# Shorter first words are often titles ("Dr", "Mr").
_LEAST_FIRST_NAME = 3


def named_speakers(query: str, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names that a query contains, in full or by their first word.

    Capitals count, because names can be other words ("Will", "May"), unless the query has none.
    """
    folded = _has_no_capitals(query)
    return tuple(name for name in names if _pattern(name, folded=folded).search(query))


def in_first_person(query: str, speakers: Sequence[str]) -> str:
    """Returns a query with "I" in place of the names of speakers; empty if it names nothing else.

    People do not say their own names: "What does Nell drive?" is answered by "I bought a van". The
    vector of a question with a name is similar to everything that mentions a person. The English
    pronoun is as good as one of the query's language, because the model is multilingual.
    """
    subject = _replaced(without_stop_words(query), speakers, "")
    return _replaced(query, speakers, "I") if any(map(str.isalnum, subject)) else ""


def _replaced(query: str, names: Sequence[str], other: str) -> str:
    folded = _has_no_capitals(query)
    for name in names:
        query = _pattern(name, folded=folded).sub(other, query)
    return query


def _has_no_capitals(query: str) -> bool:
    return query == query.lower()


@lru_cache(maxsize=1_000)
def _pattern(name: str, *, folded: bool) -> re.Pattern[str]:
    forms = [name]
    first = name.split(maxsplit=1)[0] if name.strip() else name
    if len(first) >= _LEAST_FIRST_NAME and first != name:
        forms.append(first)
    written = "|".join(map(re.escape, forms))
    return re.compile(
        rf"(?<!{_LETTER})(?:{written})(?:['\u2019]s)?(?!{_LETTER})",
        re.IGNORECASE if folded else 0,
    )
