"""Removes English stop words from queries: words for which the sparse encoder has no term."""

from __future__ import annotations

import re
import string
from functools import lru_cache

from strata.shared.search.vectors.sparse import SparseEncoder

_QUOTED_OR_WORD = re.compile(r'-?"[^"]*"|\S+')
_PUNCTUATION = string.punctuation
_ENCODER = SparseEncoder()


def without_stop_words(words: str) -> str:
    """Returns a query without English stop words, or unchanged if it has no other words.

    Nearly every text contains stop words, so they do not help a search. Quoted phrases stay whole.
    """
    parts = _QUOTED_OR_WORD.findall(words)
    kept = [part for part in parts if not _is_stop_word(part.strip(_PUNCTUATION))]
    return " ".join(kept) if any(map(_has_letter, kept)) else words


@lru_cache(maxsize=4_096)
def _is_stop_word(word: str) -> bool:
    # A word of the encoder's list has no term; neither has an emoji, which has no letters.
    parts = word.replace("\u2019", "'").split("'")
    return all(part.isascii() and part.isalpha() for part in parts) and not any(
        _ENCODER.query(part) for part in parts
    )


def _has_letter(part: str) -> bool:
    return any(not char.isspace() and char not in _PUNCTUATION for char in part)
