"""The lines of a text as a reader takes them: without bullets, in paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Line:
    """A line with something in it.

    Attributes:
        number: From 1.
        text: As it is.
        words: Without indentation, bullet and final punctuation; blanks are single.
        heading: It titles what follows.
        paragraph: Lines of one number stand together: under one title, without an
            empty line between them.
    """

    number: int
    text: str
    words: str
    heading: bool
    paragraph: int

    @property
    def plain(self) -> str:
        """What two lines that say the same have in common."""
        return self.words.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def lines_of(text: str) -> Iterator[Line]:
    """Yields the lines of a text that are not empty."""
    paragraph = 0
    fenced = False
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            continue
        if not stripped:
            paragraph += 1
            continue
        if fenced:
            # Code repeats itself, and says nothing of anybody.
            continue
        heading = stripped.startswith("#") or stripped.endswith(":")
        paragraph += heading
        words = _BLANKS.sub(" ", _BULLET.sub("", stripped, count=1)).rstrip(" .;,!")
        yield Line(number, line, words, heading, paragraph)
