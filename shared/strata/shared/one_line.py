"""Single-line names and tags: a check, and a safe form for showing other texts."""

from __future__ import annotations

import unicodedata

# Control characters (line ends and NUL among them), halves of surrogates, and the separators
# of lines and paragraphs.
_BREAKING = frozenset(("Cc", "Cs", "Zl", "Zp"))
DIRECTION_CHARACTERS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the following text, also beyond the end of a name."""

UNSAFE_CODES = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    *map(ord, sorted(DIRECTION_CHARACTERS)),
)
"""C0 and C1 control characters but tab and newline, and the changes of direction: characters that
change how a text is shown, and are not shown themselves."""
# Readers of one document a line may split at the separators of lines and paragraphs, too.
_ESCAPES = {code: f"\\u{code:04x}" for code in (*UNSAFE_CODES, 0x2028, 0x2029)}


def escaped(text: str) -> str:
    """Returns the text with `UNSAFE_CODES` and line and paragraph separators as escapes of JSON.

    A JSON document keeps its meaning, because these characters occur only in its strings.
    """
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def is_one_line(text: str) -> bool:
    """Returns whether a text has no line end, control character or change of direction."""
    return not any(_breaks(character) for character in text)


def one_line(text: str) -> str:
    """Returns the text with every character that `is_one_line` refuses replaced by a space."""
    if text.isprintable():
        return text
    return "".join(" " if _breaks(character) else character for character in text)


def clipped(text: str, limit: int) -> str:
    """Returns the text on one line, truncated to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _breaks(character: str) -> bool:
    return character in DIRECTION_CHARACTERS or unicodedata.category(character) in _BREAKING
