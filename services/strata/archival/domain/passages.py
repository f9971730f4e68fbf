"""Archives, passages and searches over them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from strata.archival.domain.near_duplicates import TextSignature

Cursor = tuple[str | int | datetime, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may be repeated; without an id it may not.

    Attributes:
        digest: Of everything that the request says.
    """

    id: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Archive:
    """A collection of passages with one embedding model.

    Attributes:
        own_agent_id: The agent that it was made for and goes with; empty for a shared one.
        time_to_live: Seconds after which passages are deleted; 0 means never.
        agent_ids: Agents that have it.
        unindexed_count: Passages stored but not in the index yet.
        own_model: Its embedding model, if it does not follow the default.
    """

    id: str
    name: str
    description: str
    embedding_model: str
    embedding_dim: int
    time_to_live: int
    passage_count: int
    create_time: datetime
    update_time: datetime
    own_agent_id: str = ""
    agent_ids: tuple[str, ...] = ()
    unindexed_count: int = 0
    own_model: str = ""


@dataclass(frozen=True, slots=True)
class ArchiveChange:
    """New values of an archive; None keeps the old one."""

    name: str | None = None
    description: str | None = None
    time_to_live: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a passage came from.

    Attributes:
        taint: Strangers' text that its writer had read: "web", "mcp", in this order.
    """

    agent_id: str = ""
    run_id: str = ""
    tool_call_id: str = ""
    message_id: str = ""
    file_id: str = ""
    taint: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewText:
    """A text to be stored, with what takes long to find out about it."""

    text: str
    token_count: int
    likeness: TextSignature

    @property
    def content_hash(self) -> str:
        """See `hash_of`."""
        return hash_of(self.text)


@dataclass(frozen=True, slots=True)
class GivenVector:
    """A vector of a whole text that was made elsewhere.

    Attributes:
        model: Whose it is.
        packed: 32-bit floats, little-endian: as they come, and as they are stored.
    """

    model: str
    packed: bytes

    @classmethod
    def of(cls, model: str, values: Sequence[float]) -> GivenVector:
        """Returns the vector with these numbers."""
        return cls(model, struct.pack(f"<{len(values)}f", *values))

    @property
    def dim(self) -> int:
        """How many numbers it has."""
        return len(self.packed) // 4

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers."""
        return struct.unpack(f"<{self.dim}f", self.packed)


@dataclass(frozen=True, slots=True)
class NewPassage:
    """A passage to be stored; its tags are sorted and unique.

    Attributes:
        create_time: When it was said or written.
        store_time: Now.
        principal: Who stores it.
        vector: Used instead of embedding the text.
    """

    id: str
    content: NewText
    create_time: datetime
    store_time: datetime
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    principal: str = ""
    vector: GivenVector | None = None

    @property
    def content_hash(self) -> str:
        """What makes two passages of an archive the same."""
        return self.content.content_hash


@dataclass(frozen=True, slots=True)
class Passage:
    """A stored passage.

    Attributes:
        indexed: True if its present revision is in the index.
        deleted: True if it is hidden; since its last change then.
        near_duplicate_ids: Those that said nearly the same when its text was stored.
        vector: Used instead of embedding the text; only the indexer is given it.
    """

    id: str
    archive_id: str
    text: str
    tags: tuple[str, ...]
    metadata: Mapping[str, str]
    origin: Origin
    token_count: int
    revision: int
    indexed: bool
    create_time: datetime
    update_time: datetime
    deleted: bool = False
    near_duplicate_ids: tuple[str, ...] = ()
    vector: GivenVector | None = None


@dataclass(frozen=True, slots=True)
class Inserted:
    """A stored passage, and whether it was there before.

    Attributes:
        near_texts: How the near-duplicates of a new one begin, in their order.
        near_taints: What they were written under, in the same order.
    """

    passage: Passage
    duplicate: bool
    near_texts: tuple[str, ...] = ()
    near_taints: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What an upload has stored, and what was there before."""

    inserted: int = 0
    duplicates: int = 0

    def plus(self, stored: Sequence[Inserted]) -> Uploaded:
        """Returns the counts after some passages more."""
        duplicates = sum(item.duplicate for item in stored)
        return Uploaded(self.inserted + len(stored) - duplicates, self.duplicates + duplicates)


@dataclass(frozen=True, slots=True)
class Place:
    """Where to store: an archive, or an agent's own archive. One of the two is set."""

    archive_id: str = ""
    agent_id: str = ""


class TagMatch(StrEnum):
    """Whether one of the tags is enough."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which passages are meant; ``end_time`` is exclusive.

    Attributes:
        run_id: The run that they came from.
        message_id: The message that they came from.
        show_deleted: Deleted ones, too.
    """

    archive_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    tag_match: TagMatch = TagMatch.ANY
    start_time: datetime | None = None
    end_time: datetime | None = None
    run_id: str = ""
    message_id: str = ""
    show_deleted: bool = False


MOST_TAGS = 50
MOST_TAGS_COUNTED = 1_000


@dataclass(frozen=True, slots=True)
class AgentStats:
    """What an agent's archival memory holds.

    Attributes:
        passage_count: Passages in all its archives.
        tags: The tags that are used most, most used first, at most `MOST_TAGS`.
        more_tags: How many others there are, counted up to `MOST_TAGS_COUNTED`.
    """

    passage_count: int
    tags: tuple[str, ...]
    more_tags: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Some passages, and where the next page starts (None at the end)."""

    passages: Sequence[Passage]
    next_cursor: Cursor | None = None


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """Some archives, and where the next page starts (None at the end)."""

    archives: Sequence[Archive]
    next_cursor: Cursor | None = None


def hash_of(text: str) -> str:
    """Returns the SHA-256 of a text as it stands, hex: what makes two passages the same."""
    return hashlib.sha256(text.encode()).hexdigest()
