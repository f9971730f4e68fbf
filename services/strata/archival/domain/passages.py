"""Archives and passages."""

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
class Archive:
    """A collection of passages with one embedding model.

    Attributes:
        own_agent_id: The agent that it was made for and is deleted with; empty if shared.
        time_to_live: Seconds after which passages are deleted; 0 means never.
        agent_ids: Agents that it is attached to.
        unindexed_count: Number of passages that are not indexed yet.
        own_model: Its own embedding model; empty if it follows the default.
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
    """The origin of a passage.

    Attributes:
        taint: Labels of the untrusted content that its writer had read: "web", "mcp".
    """

    agent_id: str = ""
    run_id: str = ""
    tool_call_id: str = ""
    message_id: str = ""
    file_id: str = ""
    taint: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewText:
    """A text to store, with its number of tokens and its signature."""

    text: str
    token_count: int
    signature: TextSignature

    @property
    def content_hash(self) -> str:
        """See `hash_of`."""
        return hash_of(self.text)


@dataclass(frozen=True, slots=True)
class SuppliedVector:
    """A vector of a whole text that the client supplied.

    Attributes:
        model: The model that made it.
        packed: 32-bit floats, little-endian, as in the request and in the database.
    """

    model: str
    packed: bytes

    @classmethod
    def of(cls, model: str, values: Sequence[float]) -> SuppliedVector:
        """Returns the vector with these numbers."""
        return cls(model, struct.pack(f"<{len(values)}f", *values))

    @property
    def dim(self) -> int:
        """Its dimension."""
        return len(self.packed) // 4

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers."""
        return struct.unpack(f"<{self.dim}f", self.packed)


@dataclass(frozen=True, slots=True)
class NewPassage:
    """A passage to store; its tags are sorted and unique.

    Attributes:
        create_time: When the text was said or written.
        store_time: When it is stored.
        principal: The principal that stores it.
        vector: Used instead of embedding the text.
        field: Its path in the request, for errors.
    """

    id: str
    content: NewText
    create_time: datetime
    store_time: datetime
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    principal: str = ""
    vector: SuppliedVector | None = None
    field: str = "passage"

    @property
    def content_hash(self) -> str:
        """The hash that is equal for duplicates in an archive."""
        return self.content.content_hash


@dataclass(frozen=True, slots=True)
class Passage:
    """A stored passage.

    Attributes:
        indexed: True if its current revision is in the index.
        deleted: True if it is hidden, since `update_time`.
        near_duplicate_ids: Passages that were nearly equal when its text was stored.
        vector: Used instead of embedding the text; set only for the indexer.
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
    vector: SuppliedVector | None = None


@dataclass(frozen=True, slots=True)
class InsertedPassage:
    """A stored passage, and whether it existed before.

    Attributes:
        near_texts: The beginnings of the near-duplicates' texts, in their order.
        near_taints: Their taint labels, in the same order.
    """

    passage: Passage
    duplicate: bool
    near_texts: tuple[str, ...] = ()
    near_taints: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveRef:
    """Refers to an archive by its id, or to an agent's archives. One of the two is set."""

    archive_id: str = ""
    agent_id: str = ""


class TagMatch(StrEnum):
    """Whether a passage needs any or all of the tags."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on passages; ``end_time`` is exclusive.

    Attributes:
        run_id: Only passages of this run; empty for all.
        message_id: Only passages of this message; empty for all.
        show_deleted: Include deleted passages.
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
    """Counts of an agent's archival memory.

    Attributes:
        passage_count: Number of passages in all its archives.
        tags: The most frequent tags, at most `MOST_TAGS`, most frequent first.
        more_tags: Number of other tags, counted up to `MOST_TAGS_COUNTED`.
        taint: Taint labels of tags, by tag: those of the passages with the tag. A tag that a
            passage without labels has, too, has none.
    """

    passage_count: int
    tags: tuple[str, ...]
    more_tags: int = 0
    taint: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def hash_of(text: str) -> str:
    """Returns the SHA-256 of a text, in hex; it is equal for duplicates."""
    return hashlib.sha256(text.encode()).hexdigest()
