"""Splits the text of a file into chunks for the search by meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strata.core_memory.files.domain.ports import Chunk

CHUNK_CHARS = 1_200
"""Maximum of characters in a chunk: about 300 tokens of four characters, a few paragraphs."""

# A chunk of at least this size ends at the next empty line or heading.
_GOOD_CHARS = 600


class Chunker:
    """Groups whole lines into chunks, and splits lines that are longer than a chunk.

    Only blank lines between chunks are dropped. Call `feed` with the lines in order, then `end`.
    """

    def __init__(self) -> None:
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
            if len(line) > CHUNK_CHARS:
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
            yield Chunk(self._ordinal, text, first, last)
            self._ordinal += 1


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
