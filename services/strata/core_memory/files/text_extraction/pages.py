"""Splits the text of a file into lines and pages, the form in which it is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PAGE_CHARS = 64 * 1024
"""Minimum of characters in a page, except the last: a page ends with the line that reaches it."""

MAX_LINE_CHARS = 8_000
"""Maximum of characters in a line; longer lines are split."""

MAX_TEXT_CHARS = 100_000_000
"""Maximum of characters in a text, since converted text can be larger than its file."""


class UnreadableFileError(Exception):
    """A file cannot be read, and trying again does not help.

    Attributes:
        message: Why, for the person who uploaded it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class ParsedPage:
    """Consecutive whole lines of a file.

    Attributes:
        number: Position among the pages, from 0.
        first_line: Number of its first line, from 1.
        line_count: Number of its lines, at least one.
        text: The lines, separated by line feeds, without one at the end.
    """

    number: int
    first_line: int
    line_count: int
    text: str


def pages_of(pieces: Iterable[str]) -> Iterator[ParsedPage]:
    """Splits text into pages; holds about one page in memory.

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
            yield ParsedPage(number, first_line, len(lines), "\n".join(lines))
            number, first_line, total = number + 1, first_line + len(lines), total + size
            lines, size = [], 0
            if total > MAX_TEXT_CHARS:
                limit = MAX_TEXT_CHARS // 1_000_000
                raise UnreadableFileError(
                    f"The text in the file is longer than {limit} million characters."
                )
    if lines:
        yield ParsedPage(number, first_line, len(lines), "\n".join(lines))


def _lines_of(pieces: Iterable[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        *complete_lines, rest = (rest + piece).split("\n")
        for line in complete_lines:
            yield from _broken(line)
        # The next piece may continue this line, so its last part is kept.
        *full, rest = _broken(rest)
        yield from full
    if rest:
        yield rest


def _broken(line: str) -> list[str]:
    if len(line) <= MAX_LINE_CHARS:
        return [line]
    return [line[at : at + MAX_LINE_CHARS] for at in range(0, len(line), MAX_LINE_CHARS)]
