"""Splits a block's text into lines for the linter: without bullets, blank lines and code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line that is not blank.

    Attributes:
        number: Line number, from 1.
        text: The line as it is stored.
        words: The line without indentation, bullet and final punctuation, with single
            blanks.
        heading: The line is a title: it starts with "#" or ends with ":".
    """

    number: int
    text: str
    words: str
    heading: bool

    @property
    def plain(self) -> str:
        """The words in a form that is equal for lines that differ only in case or apostrophes."""
        return self.words.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def lines_of(text: str) -> Iterator[TextLine]:
    """Yields the lines of a text, except blank lines and fenced code."""
    fenced = False
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            continue
        # Repeated lines are normal in code.
        if fenced or not stripped:
            continue
        heading = stripped.startswith("#") or stripped.endswith(":")
        words = _BLANKS.sub(" ", _BULLET.sub("", stripped, count=1)).rstrip(" .;,!")
        yield TextLine(number, line, words, heading)
