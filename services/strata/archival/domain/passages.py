"""Archives, passages and searches over them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

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


@dataclass(frozen=True, slots=True)
class ArchiveChange:
    """New values of an archive; None keeps the old one."""

    name: str | None = None
    description: str | None = None
    time_to_live: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a passage came from."""

    agent_id: str = ""
    run_id: str = ""
    tool_call_id: str = ""
    message_id: str = ""
    file_id: str = ""


@dataclass(frozen=True, slots=True)
class NewPassage:
    """A passage to be stored; its tags are sorted and unique."""

    id: str
    text: str
    token_count: int
    create_time: datetime
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)

    @property
    def content_hash(self) -> str:
        """SHA-256 of the text, hex: what makes two passages the same."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Passage:
    """A stored passage.

    Attributes:
        indexed: True if its present revision is in the index.
        deleted: True if it is kept only until the index has forgotten it.
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


@dataclass(frozen=True, slots=True)
class Inserted:
    """A stored passage, and whether it was there before."""

    passage: Passage
    duplicate: bool


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
    """Which passages are meant; ``end_time`` is exclusive."""

    archive_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    tag_match: TagMatch = TagMatch.ANY
    start_time: datetime | None = None
    end_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for; either an agent or archives say where."""

    query: str
    top_k: int
    agent_id: str = ""
    archive_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tag_match: TagMatch = TagMatch.ANY
    start_time: datetime | None = None
    end_time: datetime | None = None

    def within(self, archive_ids: Sequence[str]) -> Filter:
        """Returns the conditions of the search over known archives."""
        return Filter(tuple(archive_ids), self.tags, self.tag_match, self.start_time, self.end_time)


@dataclass(frozen=True, slots=True)
class Found:
    """A found passage.

    Attributes:
        mode: ``hybrid``, ``vector`` or ``fts``: which arms took part.
        score: What the results are ordered by.
        vector_rank: Place by meaning, from 1; None if not found so.
        fts_rank: Place by words, from 1; None if not found so.
    """

    passage: Passage
    mode: str
    score: float
    vector_rank: int | None
    fts_rank: int | None


@dataclass(frozen=True, slots=True)
class AgentStats:
    """What an agent's archival memory holds."""

    passage_count: int
    tags: tuple[str, ...]


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
