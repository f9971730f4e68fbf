"""Names and tags that are one line: what may stand in them, and how others are shown."""

from __future__ import annotations

import unicodedata

# Control characters (line ends and NUL among them), halves of surrogates, and the separators
# of lines and paragraphs.
_BREAKING = frozenset(("Cc", "Cs", "Zl", "Zp"))
# They change the direction of what follows them, also beyond the name that holds them.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_one_line(text: str) -> bool:
    """Says whether a text has no line end, no control character and no change of direction."""
    return not any(_breaks(character) for character in text)


def one_line(text: str) -> str:
    """Returns a text with a space in the place of every character that `is_one_line` refuses."""
    if text.isprintable():
        return text
    return "".join(" " if _breaks(character) else character for character in text)


def _breaks(character: str) -> bool:
    return character in _DIRECTIONS or unicodedata.category(character) in _BREAKING
