"""Searches of files by pattern: queries, results, limits, and the interface of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from strata.core_memory.files.domain.files import wrong_field
from strata.shared.blank_text import is_blank

MAX_PATTERN_CHARS = 1_000
MAX_CONTEXT_LINES = 20
MAX_OFFSET = 1_000_000
MATCHES_A_PAGE = 20
MAX_MATCHES = 1_000
MAX_FILE_CHARS = 50 * 1024 * 1024
MAX_TOTAL_CHARS = 200 * 1024 * 1024
MAX_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class GrepQuery:
    """A search by pattern.

    Attributes:
        agent_id: The agent whose files are searched.
        pattern: Regular expression.
        include: Glob, regular expression or part of the names to search in; empty for all.
        context_lines: Lines shown before and after a match.
        offset: Matches to skip.
    """

    agent_id: str
    pattern: str
    include: str = ""
    context_lines: int = 1
    offset: int = 0


class SearchedPage(NamedTuple):
    """A page of the text of a content.

    Attributes:
        content_index: Index of the content among those that are searched together.
        page: Number of the page.
        first_line: Its first line, from 1.
        text: Its text.
    """

    content_index: int
    page: int
    first_line: int
    text: str


@dataclass(frozen=True, slots=True)
class GrepFile:
    """A file that may be searched.

    Attributes:
        id: The file.
        name: ``FOLDER/FILE``.
        content_key: Its content.
        readable: Its content has been converted to text.
        char_count: Characters of its text.
        is_open: The agent has a window into it.
    """

    id: str
    name: str
    content_key: str
    readable: bool
    char_count: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class LineRange:
    """A range of lines of a content; first and last line count from 1."""

    content_key: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A matching line.

    Attributes:
        file_name: ``FOLDER/FILE``.
        line: Its number, from 1.
        lines: The line and those around it, numbered, as they are shown.
    """

    file_name: str
    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GrepPage:
    """A page of matches, their total number, and the message to the model.

    Attributes:
        truncated: A limit cut the search short.
    """

    matches: tuple[GrepMatch, ...]
    total: int
    message: str
    truncated: bool = False


@dataclass(slots=True)
class Survey:
    """The results of a running search.

    Attributes:
        hits: Index of the file and number of the line of each match, in order.
        too_large: Number of files that were skipped because they are too large.
        unread: Number of files that were skipped because they have no text (yet).
        stopped: Why the search ended before the last file; empty if it is complete.
    """

    hits: list[tuple[int, int]] = field(default_factory=list)
    too_large: int = 0
    unread: int = 0
    stopped: str = ""

    @property
    def is_full(self) -> bool:
        """True if no more matches are counted."""
        return len(self.hits) >= MAX_MATCHES


class TextStore(Protocol):
    """Reads files and their texts."""

    async def grep_files(self, agent_id: str, after: str, count: int) -> list[GrepFile]:
        """Returns files of an agent's folders by folder and name, after ``FOLDER/FILE``."""
        ...

    async def grep_pages(
        self, content_keys: Sequence[str], after: tuple[int, int], count: int
    ) -> list[SearchedPage]:
        """Returns pages of contents in order.

        Args:
            content_keys: The contents.
            after: Index of the content and number of the page to start after.
            count: Maximum of pages.
        """
        ...

    async def lines(self, ranges: Sequence[LineRange]) -> Mapping[tuple[str, int], str]:
        """Returns lines by content and number."""
        ...


def check_query(query: GrepQuery) -> None:
    """Validates a query.

    Raises:
        InvalidArgumentError: A field is wrong; the message is written for the model.
    """
    if is_blank(query.pattern):
        raise wrong_field("pattern", "Empty search pattern provided")
    if len(query.pattern) > MAX_PATTERN_CHARS:
        raise wrong_field(
            "pattern",
            f"Pattern too long: {len(query.pattern)} characters (max {MAX_PATTERN_CHARS})",
        )
    if len(query.include) > MAX_PATTERN_CHARS:
        raise wrong_field(
            "include",
            f"Include pattern too long: {len(query.include)} characters (max {MAX_PATTERN_CHARS})",
        )
    if not 0 <= query.context_lines <= MAX_CONTEXT_LINES:
        raise wrong_field(
            "context_lines",
            f"context_lines must be from 0 to {MAX_CONTEXT_LINES}, got {query.context_lines}",
        )
    if not 0 <= query.offset <= MAX_OFFSET:
        raise wrong_field("offset", f"offset must be from 0 to {MAX_OFFSET}, got {query.offset}")
