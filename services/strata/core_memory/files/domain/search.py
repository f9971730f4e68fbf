"""Searching files by meaning: what may be asked, and what the model is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from strata.shared.errors import FieldViolation, InvalidArgumentError

DEFAULT_LIMIT = 5
MAX_LIMIT = 50
MAX_QUERY_CHARS = 10_000
MAX_FOLDERS = 500
"""Folders that are searched at most, those attached first."""

_RULE = "=" * 80


@dataclass(frozen=True, slots=True)
class FileQuery:
    """A search by meaning.

    Attributes:
        agent_id: The agent whose files are searched.
        query: A question or words.
        limit: Results at most; 0 for `DEFAULT_LIMIT`.
        explain: Count what is left out as unrelated to the query.
    """

    agent_id: str
    query: str
    limit: int = 0
    explain: bool = False


@dataclass(frozen=True, slots=True)
class FileHit:
    """A found piece of a file, by the name that the agent knows."""

    file_name: str
    start_line: int
    end_line: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class FileFindings:
    """The best pieces, best first.

    Attributes:
        hits: The pieces.
        message: What the model is told.
        unindexed_files: Files that are not fully indexed yet, so may be missed.
        below_floor: How many of the nearest pieces are left out as unrelated, if asked for.
    """

    hits: tuple[FileHit, ...]
    message: str
    unindexed_files: int
    below_floor: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """The folders of an agent, and how many of their files are not fully indexed."""

    folder_ids: tuple[str, ...]
    unindexed_files: int


class ScopeStore(Protocol):
    """What of an agent's files is to be known for a search."""

    async def scope(self, agent_id: str, count: int) -> Scope:
        """Returns an agent's first folders, in order of attachment."""
        ...

    async def names_of(self, agent_id: str, file_ids: Sequence[str]) -> Mapping[str, str]:
        """Returns ``FOLDER/FILE`` by id, of those files that are still attached."""
        ...

    async def touch(self, agent_id: str, file_ids: Sequence[str], time: datetime) -> None:
        """Notes that open files were of use, so that others are closed before them."""
        ...


def checked_limit(query: FileQuery) -> int:
    """Returns how many results are wanted, if the query makes sense.

    Raises:
        InvalidArgumentError: It does not; the message is for the model.
    """
    if not query.query.strip():
        raise _wrong("query", "Empty search query provided")
    if len(query.query) > MAX_QUERY_CHARS:
        raise _wrong(
            "query", f"Query too long: {len(query.query)} characters (max {MAX_QUERY_CHARS})"
        )
    if not 0 <= query.limit <= MAX_LIMIT:
        raise _wrong("limit", f"limit must be from 1 to {MAX_LIMIT}, got {query.limit}")
    return query.limit or DEFAULT_LIMIT


def message_of(query: FileQuery, hits: Sequence[FileHit], unindexed_files: int) -> str:
    """Returns what the model is told of the best pieces."""
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


def _wrong(field: str, message: str) -> InvalidArgumentError:
    return InvalidArgumentError(message, violations=[FieldViolation(field, message)])
