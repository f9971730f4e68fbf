"""Conversion between documents and the engine's points."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from qdrant_client import models

from strata.protocol.errors import InternalError
from strata.shared.search.fusion import Candidate
from strata.shared.search.vectors.index import (
    CHUNK_FIELD,
    DOCUMENT_FIELD,
    PROJECT_FIELD,
    Collection,
    Document,
    FieldKind,
    PayloadValue,
    Preference,
    SparseVector,
)

DENSE = "dense"
SPARSE = "bm25"

_NAMESPACE = UUID("6f0d5c2e-54f5-5c1a-9d3a-0c5a5a6f3f27")
_SCHEMAS = {
    FieldKind.KEYWORD: models.PayloadSchemaType.KEYWORD,
    FieldKind.INTEGER: models.PayloadSchemaType.INTEGER,
    FieldKind.DATETIME: models.PayloadSchemaType.DATETIME,
}


def point_id(project_id: str, document_id: str, chunk: int) -> str:
    """Returns the id of a point. It depends on the project, so tenants never share a point."""
    return str(uuid5(_NAMESPACE, f"{project_id}\0{document_id}\0{chunk}"))


def points_of(
    collection: Collection, project_id: str, documents: Sequence[Document]
) -> Iterator[models.PointStruct]:
    """Yields one point per chunk.

    Raises:
        InternalError: A document has no chunks, or a field that the collection does not have.
    """
    for document in documents:
        if not document.chunks:
            raise InternalError("a document without chunks cannot be indexed")
        shared = payload_of(collection, document.payload)
        for number, chunk in enumerate(document.chunks):
            vectors: dict[str, Any] = {DENSE: list(chunk.dense)}
            if chunk.sparse:
                vectors[SPARSE] = engine_sparse(chunk.sparse)
            # Without validation: our own values are valid, and checking takes as long as storing.
            yield models.PointStruct.model_construct(
                id=point_id(project_id, document.id, number),
                vector=vectors,
                payload={
                    **shared,
                    PROJECT_FIELD: project_id,
                    DOCUMENT_FIELD: document.id,
                    CHUNK_FIELD: number,
                },
            )


def payload_of(collection: Collection, payload: Mapping[str, PayloadValue]) -> dict[str, Any]:
    """Returns the payload as the engine stores it, with times in RFC 3339, UTC.

    Raises:
        InternalError: A field is not one of the collection.
    """
    if unknown := payload.keys() - collection.fields.keys():
        raise InternalError(f"{collection.name} has no fields {sorted(unknown)}")
    return {name: _stored(value) for name, value in payload.items()}


def engine_sparse(vector: SparseVector) -> models.SparseVector:
    """Returns the engine's form of a sparse vector."""
    return models.SparseVector.model_construct(
        indices=list(vector.indices), values=list(vector.values)
    )


def candidates_of(
    points: Sequence[models.ScoredPoint], prefer: Sequence[Preference] = ()
) -> list[Candidate]:
    """Returns the candidates that one arm of a search found."""
    candidates = []
    for point in points:
        payload = point.payload or {}
        bonus = 0.0
        for preference in prefer:
            if preference.holds(payload.get(preference.field)):
                bonus += preference.weight
        candidates.append(Candidate(str(payload[DOCUMENT_FIELD]), point.score, bonus))
    return candidates


def payload_indexes(
    collection: Collection,
) -> dict[str, models.PayloadSchemaType | models.KeywordIndexParams]:
    """Returns the index of every field that is filtered on; without one the engine would scan."""
    keyword = models.KeywordIndexType.KEYWORD
    indexes: dict[str, models.PayloadSchemaType | models.KeywordIndexParams] = {
        # Lets the engine store each tenant's points together.
        PROJECT_FIELD: models.KeywordIndexParams(type=keyword, is_tenant=True),
        DOCUMENT_FIELD: models.PayloadSchemaType.KEYWORD,
        CHUNK_FIELD: models.PayloadSchemaType.INTEGER,
    }
    return indexes | {name: _SCHEMAS[kind] for name, kind in collection.fields.items()}


def _stored(value: PayloadValue) -> str | int | list[str]:
    if isinstance(value, bool):
        raise InternalError("a bool in a document; see FieldKind")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InternalError("a time without a zone in a document")
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, (str, int)):
        return value
    return list(value)
