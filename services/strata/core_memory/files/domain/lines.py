"""Reads lines of a file from a given line on, up to a number of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strata.core_memory.files.domain.files import file_not_found


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """A file with text.

    Attributes:
        name: ``FOLDER/FILE``.
        content_key: Key of its content.
        line_count: Number of its lines.
    """

    name: str
    content_key: str
    line_count: int


@dataclass(frozen=True, slots=True)
class FileLines:
    """Lines of a file.

    Attributes:
        file: The file.
        lines: The lines.
        left_out_chars: Characters that were cut off the first line.
    """

    file: ReadableFile
    lines: tuple[str, ...]
    left_out_chars: int = 0


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """The lines of a file that are read.

    Attributes:
        agent_id: The agent to which the folder of the file is attached.
        file_id: The file.
        first_line: The first line, from 1.
        max_bytes: UTF-8 bytes of the lines, with a line feed for each. A first line that does not
            fit alone is cut.
        content_hash: The expected content; empty for any.
    """

    agent_id: str
    file_id: str
    first_line: int
    max_bytes: int
    content_hash: str = ""


class LineStore(Protocol):
    """Reads files and their lines."""

    async def readable_file(self, agent_id: str, file_id: str) -> ReadableFile | None:
        """Returns a file in a folder of an agent; None if it does not exist or has no text."""
        ...

    async def page_from(self, content_key: str, first_line: int) -> list[str]:
        """Returns lines of a content from `first_line` (from 1) on; none after the end."""
        ...


class LineReader:
    """Reads lines of files.

    Args:
        store: Reads files and their lines.
    """

    def __init__(self, store: LineStore) -> None:
        self._store = store

    async def read(self, query: ReadQuery) -> FileLines:
        """Returns lines of a file of an agent.

        Raises:
            NotFoundError: FILE_NOT_FOUND.
        """
        file = await self._store.readable_file(query.agent_id, query.file_id)
        # The key of a content starts with its hash.
        if file is None or not file.content_key.startswith(query.content_hash):
            raise file_not_found(query.file_id)
        lines: list[str] = []
        left_bytes = query.max_bytes
        while page := await self._store.page_from(file.content_key, query.first_line + len(lines)):
            for line in page:
                size = len(line.encode("utf-8", "replace")) + 1
                if size > left_bytes:
                    return _cut(file, lines, line, query.max_bytes)
                lines.append(line)
                left_bytes -= size
        return FileLines(file, tuple(lines))


def _cut(file: ReadableFile, lines: list[str], line: str, max_bytes: int) -> FileLines:
    if lines:
        return FileLines(file, tuple(lines))
    start = line.encode("utf-8", "replace")[: max_bytes - 1].decode("utf-8", "ignore")
    return FileLines(file, (start,), len(line) - len(start))
