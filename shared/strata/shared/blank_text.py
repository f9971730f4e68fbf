"""Recognises text without a visible character."""

from __future__ import annotations

import unicodedata

# Format characters (zero-width ones among them), control characters and separators.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})
# Invisible although Unicode counts them as marks, letters or symbols: the combining
# grapheme joiner, the Hangul fillers, the Khmer inherent vowels, the Mongolian and the common
# variation selectors, the empty Braille pattern, and the musical null notehead.
_INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0\U0001d159"
).union(map(chr, range(0xFE00, 0xFE10)), map(chr, range(0xE0100, 0xE01F0)))

BLANK = "must not be blank"
"""Description of the violation for a request field that must not be blank."""


def is_blank(text: str) -> bool:
    """Returns whether a text is empty or has white space and zero-width characters only."""
    first = text[:1]
    if first.isascii() and first.isalnum():
        return False
    return all(map(_is_invisible, text))


def _is_invisible(character: str) -> bool:
    return (
        character.isspace()
        or character in _INVISIBLE
        or unicodedata.category(character) in _INVISIBLE_CATEGORIES
    )
