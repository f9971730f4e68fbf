"""Searches of files by meaning: queries, results, and their text for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from strata.core_memory.files.domain.files import wrong_field

DEFAULT_LIMIT = 5
MAX_LIMIT = 50
MAX_QUERY_CHARS = 10_000
MAX_FOLDERS = 500
"""Maximum of folders that are searched: those attached first."""

_RULE = "=" * 80


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A search by meaning.

    Attributes:
        agent_id: The agent whose files are searched.
        query: A question or words.
        limit: Maximum of results; 0 for `DEFAULT_LIMIT`.
        explain: Count the passages that are left out because their score is too low.
    """

    agent_id: str
    query: str
    limit: int = 0
    explain: bool = False


@dataclass(frozen=True, slots=True)
class FileHit:
    """A found passage of a file."""

    file_name: str
    start_line: int
    end_line: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class FileFindings:
    """The best passages, best first.

    Attributes:
        hits: The passages.
        message: The message to the model.
        unindexed_files: Number of files that are not fully indexed yet.
        below_floor: How many were left out because their score is too low; with `explain`.
    """

    hits: tuple[FileHit, ...]
    message: str
    unindexed_files: int
    below_floor: int = 0


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The folders of an agent, and how many of their files are not fully indexed."""

    folder_ids: tuple[str, ...]
    unindexed_files: int


class ScopeStore(Protocol):
    """Reads the folders and names of files that a search needs."""

    async def scope(self, agent_id: str, count: int) -> SearchScope:
        """Returns an agent's first folders, in order of attachment."""
        ...

    async def names_of(self, agent_id: str, file_ids: Sequence[str]) -> Mapping[str, str]:
        """Returns ``FOLDER/FILE`` by id, for those files that are still attached."""
        ...

    async def touch(self, agent_id: str, file_ids: Sequence[str], time: datetime) -> None:
        """Updates the last access time of open files, so that others are closed first."""
        ...


def checked_limit(query: FileQuery) -> int:
    """Validates a query and returns its limit.

    Raises:
        InvalidArgumentError: A field is wrong; the message is written for the model.
    """
    if not query.query.strip():
        raise wrong_field("query", "Empty search query provided")
    if len(query.query) > MAX_QUERY_CHARS:
        raise wrong_field(
            "query", f"Query too long: {len(query.query)} characters (max {MAX_QUERY_CHARS})"
        )
    if not 0 <= query.limit <= MAX_LIMIT:
        raise wrong_field("limit", f"limit must be from 1 to {MAX_LIMIT}, got {query.limit}")
    return query.limit or DEFAULT_LIMIT


def message_of(query: FileQuery, hits: Sequence[FileHit], unindexed_files: int) -> str:
    """Returns the message to the model about the best passages."""
    note = ""
    if unindexed_files:
        note = (
            f"\nNote: {unindexed_files} file(s) are not fully indexed yet, so passages "
            "of them may be missing: grep_files finds them"
        )
    if not hits:
        return f"No passages found for query: '{query.query}'{note}"
    files = len({hit.file_name for hit in hits})
    head = f"Found {len(hits)} passages in {files} files, best first{note}\n{_RULE}"
    return head + "".join(
        f"\n\n=== {hit.file_name} (lines {hit.start_line}-{hit.end_line}) ===\n{hit.text}"
        for hit in hits
    )
