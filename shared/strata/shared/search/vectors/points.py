"""Conversion between documents and the engine's points."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from strata.protocol.errors import InternalError
from strata.shared.search.fusion import Candidate
from strata.shared.search.qdrant_wire import json_values, points
from strata.shared.search.surroundings import Place
from strata.shared.search.vectors.collections import DENSE, SPARSE
from strata.shared.search.vectors.index import (
    CHUNK_FIELD,
    DOCUMENT_FIELD,
    PROJECT_FIELD,
    Collection,
    IndexedChunk,
    IndexedDocument,
    NeighbourFields,
    PayloadValue,
    Preference,
    SparseVector,
)

StoredValue: TypeAlias = str | int | list[str]

_NAMESPACE = UUID("6f0d5c2e-54f5-5c1a-9d3a-0c5a5a6f3f27")
_SCALARS = frozenset({"string_value", "integer_value", "double_value", "bool_value"})


class Point(NamedTuple):
    """One chunk of a document, as the engine stores it."""

    id: str
    chunk: IndexedChunk
    payload: Mapping[str, StoredValue]


def point_id(project_id: str, document_id: str, chunk: int) -> str:
    """Returns the id of a point. It depends on the project, so tenants never share a point."""
    return str(uuid5(_NAMESPACE, f"{project_id}\0{document_id}\0{chunk}"))


def points_of(
    collection: Collection, project_id: str, documents: Sequence[IndexedDocument]
) -> Iterator[Point]:
    """Yields one point per chunk.

    Raises:
        InternalError: A document has no chunks, or a field that the collection does not have.
    """
    for document in documents:
        if not document.chunks:
            raise InternalError("a document without chunks cannot be indexed")
        shared = payload_of(collection, document.payload)
        for number, chunk in enumerate(document.chunks):
            payload = {
                **shared,
                PROJECT_FIELD: project_id,
                DOCUMENT_FIELD: document.id,
                CHUNK_FIELD: number,
            }
            yield Point(point_id(project_id, document.id, number), chunk, payload)


def upsert_request(target: str, batch: Iterable[Point]) -> points.UpsertPoints:
    """Returns the request that stores points.

    They are built in place, because adding a finished message to another copies it.
    """
    request = points.UpsertPoints(collection_name=target, wait=True)
    for point in batch:
        message = request.points.add()
        message.id.uuid = point.id
        vectors = message.vectors.vectors.vectors
        vectors[DENSE].dense.data.extend(point.chunk.dense)
        if point.chunk.sparse:
            put_sparse(vectors[SPARSE].sparse, point.chunk.sparse)
        for name, value in point.payload.items():
            _put_value(message.payload[name], value)
    return request


def put_sparse(target: points.SparseVector, vector: SparseVector) -> None:
    """Fills in the engine's form of a sparse vector."""
    target.indices.extend(vector.indices)
    target.values.extend(vector.values)


def payload_of(
    collection: Collection, payload: Mapping[str, PayloadValue]
) -> dict[str, StoredValue]:
    """Returns the payload as the engine stores it, with times in RFC 3339, UTC.

    Raises:
        InternalError: A field is not one of the collection.
    """
    if unknown := payload.keys() - collection.stored_fields:
        raise InternalError(f"{collection.name} has no fields {sorted(unknown)}")
    return {name: _stored(value) for name, value in payload.items()}


def candidates_of(
    collection: Collection,
    matches: Iterable[points.ScoredPoint],
    prefer: Sequence[Preference] = (),
) -> list[Candidate]:
    """Returns the candidates that one arm of a search found."""
    neighbours = collection.neighbours
    candidates = []
    for point in matches:
        payload = _scalars(point.payload)
        bonus = 0.0
        for preference in prefer:
            if preference.holds(payload.get(preference.field)):
                bonus += preference.weight
        place = None if neighbours is None else _place(payload, neighbours)
        stored = payload.get(collection.time_field)
        time = datetime.fromisoformat(stored).timestamp() if stored else 0.0
        candidates.append(Candidate(str(payload[DOCUMENT_FIELD]), point.score, bonus, place, time))
    return candidates


def result_fields(
    collection: Collection, prefer: Sequence[Preference], *, newest: bool
) -> list[str]:
    """Returns the fields that `candidates_of` reads.

    Args:
        collection: The collection.
        prefer: The preferences of the search.
        newest: Whether the search prefers new documents.
    """
    fields = {DOCUMENT_FIELD, *(preference.field for preference in prefer)}
    neighbours = collection.neighbours
    if neighbours is not None:
        fields |= {neighbours.group, neighbours.position, neighbours.chars}
    if collection.time_field in collection.fields and (newest or neighbours is not None):
        fields.add(collection.time_field)
    return sorted(fields)


def _place(payload: Mapping[str, Any], fields: NeighbourFields) -> Place | None:
    position, chars = payload.get(fields.position), payload.get(fields.chars)
    if position is None or chars is None:
        return None
    return Place(str(payload[fields.group]), position, chars)


def _stored(value: PayloadValue) -> StoredValue:
    if isinstance(value, str):  # nearly all are
        return value
    if isinstance(value, bool):
        raise InternalError("a bool in a document; see FieldKind")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InternalError("a time without a zone in a document")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, int):
        return value
    return list(value)


def _put_value(target: json_values.Value, value: StoredValue) -> None:
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int):
        target.integer_value = value
    else:
        members = [json_values.Value(string_value=member) for member in value]
        target.list_value.CopyFrom(json_values.ListValue(values=members))


def _scalars(payload: Mapping[str, json_values.Value]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    # Not `items`, which calls a function in Python for each member of a message.
    for name in payload:
        value = payload[name]
        text = value.string_value
        if text:  # nearly all are
            fields[name] = text
        elif (kind := value.WhichOneof("kind")) in _SCALARS:
            fields[name] = getattr(value, kind)
    return fields
