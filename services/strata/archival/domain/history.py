"""What becomes of a passage after it was stored: changes, versions, and how far uploads are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from strata.archival.domain.passages import Cursor, Inserted, NewText, Origin, Request


class Operation(StrEnum):
    """What a version of a passage was made by."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Author:
    """Who changes a passage, on whose behalf and why."""

    principal: str = ""
    origin: Origin = field(default_factory=Origin)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a passage.

    Attributes:
        author: Whose it is.
        request: Repeating it must give the first answer.
        expected_revision: The revision that it is meant for; 0 is any.
        text: New text; None keeps the old one.
        tags: New tags, sorted and unique; None keeps the old ones.
        metadata: New metadata; None keeps the old.
    """

    author: Author = field(default_factory=Author)
    request: Request = field(default_factory=Request)
    expected_revision: int = 0
    text: NewText | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PassageVersion:
    """What a passage was from one change to the next."""

    passage_id: str
    revision: int
    operation: Operation
    text: str
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    token_count: int
    author: Author
    create_time: datetime


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Some versions, and where the next page starts (None at the end)."""

    versions: Sequence[PassageVersion]
    next_cursor: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an upload is.

    Attributes:
        received: Passages of it that are durable, counted from its start.
        inserted: Those that were stored.
        duplicates: Those that were there already.
        near_duplicates: Those of the stored that are nearly the same as an earlier one.
        said: Digest of the durable passages; empty if they were not all seen in one stream.
        complete: Whether nothing more may come.
    """

    received: int = 0
    inserted: int = 0
    duplicates: int = 0
    near_duplicates: int = 0
    said: str = ""
    complete: bool = False

    def plus(self, stored: Sequence[Inserted], said: str) -> Progress:
        """Returns how far it is after some passages more."""
        duplicates = sum(item.duplicate for item in stored)
        near = sum(bool(item.passage.near_duplicate_ids) and not item.duplicate for item in stored)
        return Progress(
            self.received + len(stored),
            self.inserted + len(stored) - duplicates,
            self.duplicates + duplicates,
            self.near_duplicates + near,
            said,
        )
