"""Lines and pages: the form in which the text of a file is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PAGE_CHARS = 64 * 1024
"""About how many characters a page has; it ends with the line that passes this."""

MAX_LINE_CHARS = 8_000
"""Longer lines are broken into several."""

MAX_TEXT_CHARS = 100_000_000
"""Converting can make more of a file than it was; beyond this it is refused."""


class UnreadableFileError(Exception):
    """A file cannot be read, and never will be.

    Attributes:
        message: Why, for the person who uploaded it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Page:
    """Some whole lines of a file.

    Attributes:
        number: Place among the pages, from 0.
        first_line: Number of its first line, from 1.
        line_count: How many lines it has, at least one.
        text: The lines, a line feed between them and none after the last: split there it
            gives `line_count` lines.
    """

    number: int
    first_line: int
    line_count: int
    text: str


def pages_of(pieces: Iterable[str]) -> Iterator[Page]:
    """Cuts text into pages, never holding more than about one of them.

    Args:
        pieces: The text in pieces of any size; lines end in line feeds.

    Raises:
        UnreadableFileError: The text is longer than `MAX_TEXT_CHARS`.
    """
    number, first_line, size, total = 0, 1, 0, 0
    lines: list[str] = []
    for line in _lines_of(pieces):
        lines.append(line)
        size += len(line) + 1
        if size >= PAGE_CHARS:
            yield Page(number, first_line, len(lines), "\n".join(lines))
            number, first_line, total = number + 1, first_line + len(lines), total + size
            lines, size = [], 0
            if total > MAX_TEXT_CHARS:
                limit = MAX_TEXT_CHARS // 1_000_000
                raise UnreadableFileError(
                    f"The text in the file is longer than {limit} million characters."
                )
    if lines:
        yield Page(number, first_line, len(lines), "\n".join(lines))


def _lines_of(pieces: Iterable[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        for line in whole:
            yield from _broken(line)
        # What comes next may end this line: its last part stays, even if it is full.
        *full, rest = _broken(rest)
        yield from full
    if rest:
        yield rest


def _broken(line: str) -> list[str]:
    if len(line) <= MAX_LINE_CHARS:
        return [line]
    return [line[at : at + MAX_LINE_CHARS] for at in range(0, len(line), MAX_LINE_CHARS)]
