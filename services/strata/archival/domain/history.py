"""Changes and versions of passages, and the progress of uploads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from strata.archival.domain.passages import InsertedPassage, NewText, Origin
from strata.shared.idempotency.keys import RequestKey


class Operation(StrEnum):
    """The operation that made a version of a passage."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a change: the principal, the origin and the reason."""

    principal: str = ""
    origin: Origin = field(default_factory=Origin)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PassageChange:
    """A change of a passage.

    Attributes:
        author: The author.
        request: The idempotency key of the change.
        expected_revision: The revision that it applies to; 0 for any.
        text: New text; None keeps the old one.
        tags: New tags, sorted and unique; None keeps the old ones.
        metadata: New metadata; None keeps the old.
    """

    author: Author = field(default_factory=Author)
    request: RequestKey = field(default_factory=RequestKey)
    expected_revision: int = 0
    text: NewText | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PassageVersion:
    """One entry of a passage's history: the passage after a change."""

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
class UploadProgress:
    """The progress of an upload.

    Attributes:
        received: Number of its passages that are durable, counted from its start.
        inserted: How many of them were stored.
        duplicates: How many of them existed already.
        near_duplicates: How many of the stored are nearly equal to an earlier passage.
        digest: Digest of the durable passages; empty if a stream skipped some of them.
        complete: The upload has ended; no more passages may follow.
    """

    received: int = 0
    inserted: int = 0
    duplicates: int = 0
    near_duplicates: int = 0
    digest: str = ""
    complete: bool = False

    def plus(self, inserted: Sequence[InsertedPassage], digest: str) -> UploadProgress:
        """Returns the progress after storing more passages."""
        duplicates = sum(item.duplicate for item in inserted)
        near = sum(
            bool(item.passage.near_duplicate_ids) and not item.duplicate for item in inserted
        )
        return UploadProgress(
            self.received + len(inserted),
            self.inserted + len(inserted) - duplicates,
            self.duplicates + duplicates,
            self.near_duplicates + near,
            digest,
        )
