"""The interface of the vector index, free of any engine.

A *document* (a passage, a message) is what callers know; the index stores it as one point
per chunk of its text and answers in documents. PostgreSQL holds the truth: a document's
payload here is only what is filtered on, and any collection can be dropped and rebuilt.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Protocol, TypeAlias

from strata.shared.vectors.fusion import Hit

PROJECT_FIELD = "project_id"
DOCUMENT_FIELD = "document_id"
CHUNK_FIELD = "chunk"
RESERVED_FIELDS = frozenset({PROJECT_FIELD, DOCUMENT_FIELD, CHUNK_FIELD})

LAYOUT_VERSION = 1
"""Raised when points are laid out or sparse vectors are made in another way: a new generation."""

PayloadValue: TypeAlias = str | int | datetime | Sequence[str]
FilterValue: TypeAlias = str | int


class FieldKind(StrEnum):
    """How a payload field is indexed.

    There is no bool: the embedded engine takes a bool in a condition for a number, which
    matches nothing. Store 0 or 1.
    """

    KEYWORD = "keyword"
    INTEGER = "integer"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class Collection:
    """A kind of documents.

    Attributes:
        name: The alias under which the serving generation is reached.
        fields: What can be filtered on, beside project and document id; each is indexed.
        time_field: The field that `Where.since` and `Where.until` are about.
        depth: Chunks that each arm of a search looks at, at least. Documents of many chunks
            need more of them: the best ten documents can hold the best hundred chunks.
    """

    name: str
    fields: Mapping[str, FieldKind]
    time_field: str = "create_time"
    depth: int = 60

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,62}", self.name):
            raise ValueError(f"{self.name!r} is no collection name")
        if reserved := RESERVED_FIELDS & self.fields.keys():
            raise ValueError(f"fields of the index itself: {sorted(reserved)}")

    def generation(self, model_id: str) -> str:
        """Name of the collection that holds the vectors of this model, in this layout."""
        slug = re.sub(r"[^a-z0-9.-]+", "-", model_id.lower()).strip("-")[:80]
        if slug != model_id:
            # Two model ids can have one slug; their vectors must not meet.
            slug = f"{slug}-{sha256(model_id.encode()).hexdigest()[:8]}"
        return f"{self.name}__{slug}__v{LAYOUT_VERSION}"


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights of the terms that occur; indices are unique and below 2**32."""

    indices: Sequence[int]
    values: Sequence[float]

    def __bool__(self) -> bool:
        return bool(self.indices)


@dataclass(frozen=True, slots=True)
class IndexedChunk:
    """The vectors of a part of a document."""

    dense: Sequence[float]
    sparse: SparseVector


@dataclass(frozen=True, slots=True)
class Document:
    """What is stored for one passage or message.

    Attributes:
        id: Unique in project and collection.
        chunks: At least one, in the order of the text.
        payload: Values of the collection's fields; a field may be missing.
    """

    id: str
    chunks: Sequence[IndexedChunk]
    payload: Mapping[str, PayloadValue]


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions on a document's payload; all must hold. The project is not one of them.

    Attributes:
        eq: The field has the value (a list field: contains it).
        any_of: The field has at least one of the values. No values: nothing matches.
        all_of: The list field has every value. No values: no condition.
        none_of: The field has none of the values. No values: no condition.
        since: The time field is at this time or later. Time zone aware.
        until: The time field is at this time or earlier. Time zone aware.
    """

    eq: Mapping[str, FilterValue] = field(default_factory=dict)
    any_of: Mapping[str, Sequence[FilterValue]] = field(default_factory=dict)
    all_of: Mapping[str, Sequence[FilterValue]] = field(default_factory=dict)
    none_of: Mapping[str, Sequence[FilterValue]] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it lets every document of the project through."""
        lists = (*self.all_of.values(), *self.none_of.values())
        return not (self.eq or self.any_of or any(lists) or self.since or self.until)

    @property
    def matches_nothing(self) -> bool:
        """Whether no document can match, so that the engine need not be asked."""
        return any(not values for values in self.any_of.values())


@dataclass(frozen=True, slots=True)
class Preference:
    """Documents to place higher, others still being found. Preferences add up.

    Attributes:
        weight: Added to the fused score (meaning counts up to 1).
        field: One of the collection's fields.
        value: The field has this value; or
        since: the field, a time, is at this time or later. Time zone aware.
        until: And before this time. Time zone aware.
    """

    weight: float
    field: str
    value: FilterValue | None = None
    since: datetime | None = None
    until: datetime | None = None

    def holds(self, stored: object) -> bool:
        """Says whether a value, as the engine gives it back, is a preferred one."""
        if self.value is not None:
            return stored == self.value
        if not isinstance(stored, str):
            return False
        time = datetime.fromisoformat(stored)
        return (self.since is None or time >= self.since) and (
            self.until is None or time < self.until
        )


# Returns when something has happened.
StartGate: TypeAlias = Callable[[], Awaitable[object]]


async def no_gate() -> None:
    """A `StartGate` that has come."""


class VectorIndex(Protocol):
    """Documents of all projects, searched within one.

    `project_id` is an argument of every call on documents and becomes a condition of every
    request; there is no way to ask without it. Writes are acknowledged when they survive the
    death of the engine's process. All calls may be repeated.

    Every method raises `UnavailableError` when the engine cannot be reached, takes too long,
    or does not have the collection (it was dropped and is not rebuilt yet), and
    `InternalError` when it refuses a request.
    """

    async def ensure(
        self, collection: Collection, model_id: str, dim: int, *, generation: str | None = None
    ) -> str:
        """Make the generation of the model, with all indexes, if it is not there.

        The first generation of a collection also becomes the serving one. Compare the answer
        with `serving` to see whether another model's generation still serves.

        Args:
            collection: Of which collection.
            model_id: The model.
            dim: Components of its vectors.
            generation: The name, if not the first of the model.

        Returns:
            The name of the generation.

        Raises:
            FailedPreconditionError: It is there with another dimension.
        """

    async def serving(self, collection: Collection) -> str | None:
        """The generation behind the alias, or None before the first `ensure`."""

    async def generations(self, collection: Collection) -> list[str]:
        """All generations that are there, serving or not, sorted."""

    async def switch(self, collection: Collection, generation: str) -> None:
        """Let another generation serve, at once for every reader."""

    async def drop(self, collection: Collection, generation: str) -> None:
        """Delete a generation that does not serve; no error if it is not there.

        Raises:
            FailedPreconditionError: IN_USE: it serves.
        """

    async def upsert(
        self,
        collection: Collection,
        project_id: str,
        documents: Sequence[Document],
        *,
        generation: str | None = None,
        replace: bool = False,
    ) -> None:
        """Store documents, over those of the same ids.

        Args:
            collection: Where.
            project_id: The tenant.
            documents: Any number.
            generation: One to write into; None is the serving one.
            replace: Remove chunks that a longer former text left behind. Not needed for new
                documents, and saves a request there.
        """

    async def set_payload(
        self,
        collection: Collection,
        project_id: str,
        document_ids: Sequence[str],
        payload: Mapping[str, PayloadValue],
        *,
        generation: str | None = None,
    ) -> None:
        """Overwrite some fields of documents, keeping their vectors."""

    async def query(
        self,
        collection: Collection,
        project_id: str,
        *,
        dense: Sequence[float] | None = None,
        sparse: SparseVector | None = None,
        where: Where | None = None,
        prefer: Sequence[Preference] = (),
        limit: int = 10,
        generation: str | None = None,
        unrelated: float | None = None,
        dense_weight: float = 1.0,
        floor_share: float = 1.0,
        uncut: bool = False,
        weak: bool = False,
        after: StartGate | None = None,
    ) -> list[Hit]:
        """The documents that fit best: by meaning, by words, or by both, fused.

        The conditions are applied by the engine before the limit. A sparse vector without
        terms (a query of stop words) finds nothing by words. ``unrelated`` is the cosine of
        texts that have nothing in common, if the model has one of its own. ``dense_weight`` is
        that of the meaning, 1 for a query that the model reads whole. Documents below
        ``floor_share`` of the floor are left out, unless ``weak`` asks for them. ``uncut`` gives
        all that was looked at for the limit, for a ranking together with hits of other models.
        The engine is asked ``after`` a moment, if one is given, and not before.
        """

    async def delete(
        self,
        collection: Collection,
        project_id: str,
        document_ids: Sequence[str],
        *,
        generation: str | None = None,
    ) -> None:
        """Remove documents; ids that are not there are no error."""

    async def delete_where(
        self,
        collection: Collection,
        project_id: str,
        where: Where,
        *,
        generation: str | None = None,
    ) -> None:
        """Remove all documents that match; an empty `Where` is the whole project."""

    async def count(
        self,
        collection: Collection,
        project_id: str,
        where: Where | None = None,
        *,
        generation: str | None = None,
    ) -> int:
        """How many documents match, exactly."""

    async def check(self) -> None:
        """One cheap round trip, for readiness."""

    async def close(self) -> None:
        """Close the connections."""
