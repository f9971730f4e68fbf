"""Distinguishes short queries, which name a topic, from questions."""

from __future__ import annotations

import math

from strata.shared.search.unspaced_scripts import UNSPACED

SHORT_QUERY_WORDS = 3
"""Maximum number of words of a short query."""

# Words of Chinese have one or two characters, most of Japanese more.
_UNSPACED_WORD_CHARS = 1.5
_QUESTION_MARKS = ("?", "\uff1f")


def is_short(query: str) -> bool:
    """Returns whether a query is a few words, and not marked as a question."""
    if query.rstrip().endswith(_QUESTION_MARKS):
        return False
    runs = UNSPACED.findall(query)
    unspaced = sum(math.ceil(len(run) / _UNSPACED_WORD_CHARS) for run in runs)
    return len(UNSPACED.sub(" ", query).split()) + unspaced <= SHORT_QUERY_WORDS
