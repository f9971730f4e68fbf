"""Removes stop words from queries: words for which the sparse encoder has no term."""

from __future__ import annotations

import re
import string
from collections.abc import Collection

from strata.shared.search.languages import languages_of, stop_word_languages

_QUOTED_OR_WORD = re.compile(r'-?"[^"]*"|\S+')
_PUNCTUATION = string.punctuation + "\u00a1\u00bf\u00ab\u00bb\u2026"


def without_stop_words(words: str) -> str:
    """Returns a query without stop words of its languages, or unchanged if it has no other words.

    Nearly every text contains stop words, so they do not help a search. Quoted phrases stay whole.
    """
    parts = _QUOTED_OR_WORD.findall(words)
    languages = languages_of(words)
    remaining = [part for part in parts if not _is_stop_word(part.strip(_PUNCTUATION), languages)]
    return " ".join(remaining) if any(map(_has_letter, remaining)) else words


def _is_stop_word(word: str, languages: Collection[str]) -> bool:
    parts = word.lower().replace("\u2019", "'").split("'")
    return any(
        all(not part or language in stop_word_languages(part) for part in parts)
        for language in languages
    )


def _has_letter(part: str) -> bool:
    return any(not char.isspace() and char not in _PUNCTUATION for char in part)
