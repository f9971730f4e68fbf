"""The interface of the vector index, independent of the engine.

Callers work with *documents* (passages, messages). The index stores one point per chunk of a
document's text, and returns documents. PostgreSQL is the source of truth: the index stores only
the fields that searches filter on, and every collection can be dropped and rebuilt.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Protocol, TypeAlias

from strata.shared.search.fusion import Hit

PROJECT_FIELD = "project_id"
DOCUMENT_FIELD = "document_id"
CHUNK_FIELD = "chunk"
RESERVED_FIELDS = frozenset({PROJECT_FIELD, DOCUMENT_FIELD, CHUNK_FIELD})

LAYOUT_VERSION = 1
"""Incremented when the layout of points or the sparse vectors change; starts new generations."""

PayloadValue: TypeAlias = str | int | datetime | Sequence[str]
FilterValue: TypeAlias = str | int


class FieldKind(StrEnum):
    """How a payload field is indexed.

    There is no bool, because the embedded engine reads a bool in a condition as a number, which
    matches nothing. Store 0 or 1.
    """

    KEYWORD = "keyword"
    INTEGER = "integer"
    DATETIME = "datetime"


@dataclass(frozen=True, slots=True)
class NeighbourFields:
    """The fields that determine which documents are neighbours; see `surroundings.Place`.

    Points that an earlier version of Strata stored may lack the fields that are not indexed.

    Attributes:
        group: The indexed field with the conversation or the file.
        position: The field with the number of the document in it; not indexed.
        chars: The field with the characters of the document; not indexed.
    """

    group: str
    position: str
    chars: str


@dataclass(frozen=True, slots=True)
class Collection:
    """A kind of documents.

    Attributes:
        name: The alias of the serving generation.
        fields: Fields to filter on, beside project and document id; all are indexed.
        time_field: The field that `Where.since` and `Where.until` apply to.
        neighbours: The fields that determine which documents are neighbours; None if documents have
          none.
        is_chat: The documents are messages. Their best matches are put into the order that was
            learned on chats.
        unindexed: Further fields, which preferences can name and conditions cannot.
        depth: Minimum number of chunks that each arm of a search retrieves. Documents with many
            chunks need more: the best ten documents can have the best hundred chunks.
    """

    name: str
    fields: Mapping[str, FieldKind]
    time_field: str = "create_time"
    neighbours: NeighbourFields | None = None
    is_chat: bool = False
    unindexed: Sequence[str] = ()
    depth: int = 60

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,62}", self.name):
            raise ValueError(f"{self.name!r} is not a collection name")
        if reserved := RESERVED_FIELDS & self.stored_fields:
            raise ValueError(f"fields of the index itself: {sorted(reserved)}")

    @property
    def stored_fields(self) -> frozenset[str]:
        """All fields of a document, indexed or not."""
        neighbours = self.neighbours
        extra = () if neighbours is None else (neighbours.position, neighbours.chars)
        return frozenset((*self.fields, *self.unindexed, *extra))

    def generation(self, model_id: str) -> str:
        """Returns the name of the engine's collection for this model and layout."""
        slug = re.sub(r"[^a-z0-9.-]+", "-", model_id.lower()).strip("-")[:80]
        if slug != model_id:
            # A hash, because two model ids can have the same slug, and their vectors must not mix.
            slug = f"{slug}-{sha256(model_id.encode()).hexdigest()[:8]}"
        return f"{self.name}__{slug}__v{LAYOUT_VERSION}"


@dataclass(frozen=True, slots=True)
class SparseVector:
    """The weights of the terms of a text; indices are unique and below 2**32."""

    indices: Sequence[int]
    values: Sequence[float]

    def __bool__(self) -> bool:
        return bool(self.indices)


@dataclass(frozen=True, slots=True)
class IndexedChunk:
    """The vectors of one chunk of a document."""

    dense: Sequence[float]
    sparse: SparseVector


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """The indexed form of one passage or message.

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
    """Conditions on a document's payload; all must hold. They do not contain the project.

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
        """Whether it matches every document of the project."""
        lists = (*self.all_of.values(), *self.none_of.values())
        return not (self.eq or self.any_of or any(lists) or self.since or self.until)

    @property
    def matches_nothing(self) -> bool:
        """Whether no document can match, so that no request is needed."""
        return any(not values for values in self.any_of.values())


@dataclass(frozen=True, slots=True)
class Preference:
    """A bonus for documents with a field value or a time. Bonuses of several preferences add up.

    Either `value`, or `since` and `until`, is set. Other documents are still found.

    Attributes:
        weight: Added to the fused score, in which meaning counts up to 1.
        field: One of the collection's fields.
        value: The field has this value.
        since: The field is a time at or after this one. Time zone aware.
        until: The field is a time before this one. Time zone aware.
    """

    weight: float
    field: str
    value: FilterValue | None = None
    since: datetime | None = None
    until: datetime | None = None

    def holds(self, stored: object) -> bool:
        """Returns whether a value, as returned by the engine, is preferred."""
        if self.value is not None:
            return stored == self.value
        if not isinstance(stored, str):
            return False
        time = datetime.fromisoformat(stored)
        return (self.since is None or time >= self.since) and (
            self.until is None or time < self.until
        )


# Awaited before a request is sent.
StartGate: TypeAlias = Callable[[], Awaitable[object]]


async def no_gate() -> None:
    """A `StartGate` that is open."""


class VectorIndex(Protocol):
    """An index of the documents of all projects, which is searched within one project.

    `project_id` is a required argument of every call on documents and becomes a condition of every
    request. Writes are acknowledged once they survive a crash of the engine's process. All calls
    may be repeated.

    Every method raises `UnavailableError` when the engine cannot be reached, takes too long,
    or does not have the collection (it was dropped and not rebuilt yet), and
    `InternalError` when it refuses a request.
    """

    async def ensure(
        self, collection: Collection, model_id: str, dim: int, *, generation: str | None = None
    ) -> str:
        """Creates the generation of the model with all indexes, if it does not exist.

        The first generation of a collection also becomes the serving one. Compare the result
        with `serving` to see whether the generation of another model still serves.

        Args:
            collection: The collection.
            model_id: The model.
            dim: Components of its vectors.
            generation: The name, if it is not the first generation of the model.

        Returns:
            The name of the generation.

        Raises:
            FailedPreconditionError: The generation exists with another dimension.
        """

    async def serving(self, collection: Collection) -> str | None:
        """Returns the generation behind the alias; None before the first `ensure`."""

    async def generations(self, collection: Collection) -> list[str]:
        """Returns all existing generations, serving or not, sorted."""

    async def switch(self, collection: Collection, generation: str) -> None:
        """Makes another generation the serving one, atomically for all readers."""

    async def drop(self, collection: Collection, generation: str) -> None:
        """Deletes a generation that does not serve; no error if it does not exist.

        Raises:
            FailedPreconditionError: ``IN_USE``: it serves.
        """

    async def upsert(
        self,
        collection: Collection,
        project_id: str,
        documents: Sequence[IndexedDocument],
        *,
        generation: str | None = None,
        replace: bool = False,
    ) -> None:
        """Stores documents, and replaces those with the same ids.

        Args:
            collection: The collection.
            project_id: The tenant.
            documents: Any number of documents.
            generation: The generation to write to; None for the serving one.
            replace: Also delete chunks of a longer former text. It takes a further request, which
                new documents do not need.
        """

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
        newest_share: float = 0.0,
        uncut: bool = False,
        weak: bool = False,
        after: StartGate | None = None,
    ) -> list[Hit]:
        """Returns the best documents: by meaning, by words, or by both, fused.

        The engine applies the conditions before the limit.

        Args:
            collection: The collection.
            project_id: The tenant.
            dense: Vector to search by meaning with.
            sparse: Terms to search by words with; without terms (stop words) nothing matches.
            where: Conditions on the documents.
            prefer: Documents to rank higher.
            limit: Maximum number of documents to return.
            generation: The generation to search; None for the serving one.
            unrelated: Cosine of unrelated texts, which is not 0 for every model.
            dense_weight: Weight of the meaning; 1 for a query whose words the model all knows.
            floor_share: Part of the floor below which documents are left out.
            newest_share: Part of the bonus for new documents; see `fuse`.
            uncut: Return all retrieved documents, to be merged with hits of other models.
            weak: Also return documents below the floor, marked as weak.
            after: The request is sent once this gate opens.
        """

    async def delete(
        self,
        collection: Collection,
        project_id: str,
        document_ids: Sequence[str],
        *,
        generation: str | None = None,
    ) -> None:
        """Deletes documents; unknown ids are not an error."""

    async def delete_where(
        self,
        collection: Collection,
        project_id: str,
        where: Where,
        *,
        generation: str | None = None,
    ) -> None:
        """Deletes all documents that match; an empty `Where` matches the whole project."""

    async def count(
        self,
        collection: Collection,
        project_id: str,
        where: Where | None = None,
        *,
        generation: str | None = None,
    ) -> int:
        """Returns how many documents match, exactly."""

    async def is_empty(self, collection: Collection, generation: str) -> bool:
        """Returns whether a generation holds no document of any project."""

    async def check(self) -> None:
        """Makes one cheap round trip, for readiness checks."""

    async def close(self) -> None:
        """Closes the connections."""
