"""Splits the text of a file into chunks for the search by meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from strata.core_memory.files.domain.ports import Chunk

CHUNK_CHARS = 1_200
"""Maximum of characters in a chunk: about 300 tokens of four characters, a few paragraphs."""

# A chunk of at least this size ends at the next empty line or heading.
_GOOD_CHARS = 600
# Longer titles would outweigh the text of a chunk in its vector.
_TITLE_CHARS = 80
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*")
_UNDERLINED_LEVELS = {"=": 1, "-": 2}
# Below all levels of headings.
_NO_HEADING = 7
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_SEPARATORS = re.compile(r"[_\s]+")


class Chunker:
    """Groups whole lines into chunks, and splits lines that are longer than a chunk.

    Only blank lines between chunks are dropped. Call `feed` with the lines in order, then `end`.

    Args:
        name: The name of the file.
        with_headings: Whether the text has headings of Markdown. A line of code can look like one.
    """

    def __init__(self, name: str = "", *, with_headings: bool = False) -> None:
        self._headings = _Headings(name)
        self._with_headings = with_headings
        self._heading = ""
        self._next_line = 1
        self._ordinal = 0
        self._lines: list[str] = []
        self._first_line = 1
        self._size = 0

    def feed(self, lines: Iterable[str]) -> Iterator[Chunk]:
        """Takes the next lines; yields the chunks that are complete."""
        for line in lines:
            if self._ends_before(line):
                yield from self._cut()
            if self._with_headings:
                self._headings.read(line)
            if len(line) > CHUNK_CHARS:
                self._heading = self._headings.above()
                for piece in _pieces(line):
                    yield from self._made(piece, self._next_line, self._next_line)
            else:
                self._add(line)
            self._next_line += 1

    def end(self) -> Iterator[Chunk]:
        """Yields the last chunk, if there is one."""
        yield from self._cut()

    def _ends_before(self, line: str) -> bool:
        if self._size + len(line) > CHUNK_CHARS:
            return True
        return self._size >= _GOOD_CHARS and (not line.strip() or line.startswith("#"))

    def _add(self, line: str) -> None:
        if not self._lines:
            if not line.strip():
                return
            self._first_line = self._next_line
            self._heading = self._headings.above()
        self._lines.append(line)
        self._size += len(line) + 1

    def _cut(self) -> Iterator[Chunk]:
        lines, self._lines, self._size = self._lines, [], 0
        while lines and not lines[-1].strip():
            lines.pop()
        last = self._first_line + len(lines) - 1
        yield from self._made("\n".join(lines), self._first_line, last)

    def _made(self, text: str, first: int, last: int) -> Iterator[Chunk]:
        if text.strip():
            yield Chunk(self._ordinal, text, first, last, self._heading)
            self._ordinal += 1


class _Headings:
    """The headings above a line of a Markdown text."""

    def __init__(self, name: str) -> None:
        self._name = _title(name)
        self._titles: dict[int, str] = {}
        self._fence = ""
        self._previous_line = ""
        # The level of the last line.
        self._level = _NO_HEADING

    def above(self) -> str:
        """Returns the name of the file and the headings above the last line, a line each."""
        levels = sorted(level for level in self._titles if level < self._level)
        return "\n".join(filter(None, [self._name, *(self._titles[level] for level in levels)]))

    def read(self, line: str) -> None:
        """Takes the next line."""
        self._level = _NO_HEADING
        previous, self._previous_line = self._previous_line, line
        if self._fence:
            if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                self._fence = ""
        elif fence := _FENCE.match(line):
            self._fence = fence[1]
        elif heading := _HEADING.fullmatch(line):
            self._begin(len(heading[1]), heading[2])
        elif previous.strip() and (underline := _UNDERLINE.fullmatch(line)):
            self._begin(_UNDERLINED_LEVELS[underline[1][0]], previous)

    def _begin(self, level: int, title: str) -> None:
        above = {other: text for other, text in self._titles.items() if other < level}
        self._titles = {**above, level: _title(title)}
        self._level = level


def _title(text: str) -> str:
    """Returns a title in one line, with words that a search can find."""
    return _SEPARATORS.sub(" ", text).strip()[:_TITLE_CHARS].rstrip()


def _pieces(line: str) -> Iterator[str]:
    """Yields a long line in parts, split after a space where possible."""
    at = 0
    while at < len(line):
        end = at + CHUNK_CHARS
        if end < len(line):
            space = line.rfind(" ", at + CHUNK_CHARS // 2, end)
            end = space + 1 if space > 0 else end
        yield line[at:end]
        at = end
