"""Converts `Where` to the engine's filter; the tenant is a separate, required argument."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache

from qdrant_client import models

from strata.protocol.errors import InternalError, Reason
from strata.shared.search.vectors.index import (
    CHUNK_FIELD,
    DOCUMENT_FIELD,
    PROJECT_FIELD,
    Collection,
    FieldKind,
    FilterValue,
    Where,
)


def tenant_filter(collection: Collection, project_id: str, where: Where) -> models.Filter:
    """Returns the filter of a request on documents: the project first, then the conditions.

    Raises:
        InternalError: ``TENANT_MISSING``: there is no project. ``INTERNAL``: a field is not indexed
            (the engine would scan all points), or a time has no time zone.
    """
    must: list[models.Condition] = [_project(project_id)]
    must += [_value(collection, name, value) for name, value in where.eq.items()]
    must += [_any(collection, name, values) for name, values in where.any_of.items()]
    must += [
        _value(collection, name, value) for name, values in where.all_of.items() for value in values
    ]
    if where.since is not None or where.until is not None:
        must.append(_period(collection, where.since, where.until))
    must_not: list[models.Condition] = [
        _any(collection, name, values) for name, values in where.none_of.items() if values
    ]
    # Without validation, here and below: our own values are valid, and checking takes time.
    return models.Filter.model_construct(must=must, must_not=must_not or None)


def documents_filter(
    project_id: str, document_ids: Iterable[str], *, from_chunk: int = 0
) -> models.Filter:
    """Returns the filter for the points of some documents, optionally from a chunk number on.

    Raises:
        InternalError: ``TENANT_MISSING``: there is no project.
    """
    must: list[models.Condition] = [
        _project(project_id),
        models.FieldCondition(key=DOCUMENT_FIELD, match=models.MatchAny(any=list(document_ids))),
    ]
    if from_chunk:
        condition = models.FieldCondition(key=CHUNK_FIELD, range=models.Range(gte=from_chunk))
        must.append(condition)
    return models.Filter(must=must)


def first_chunks(conditions: models.Filter) -> models.Filter:
    """Returns a filter for the first chunks only: one point of each document."""
    first = models.FieldCondition(key=CHUNK_FIELD, match=models.MatchValue(value=0))
    must = conditions.must if isinstance(conditions.must, list) else []
    return models.Filter(must=[*must, first], must_not=conditions.must_not)


@lru_cache(maxsize=1_000)
def tenant_corpus(project_id: str) -> models.SearchParams:
    """Returns parameters that make the engine count the rarity of words within the project only.

    Counted over all projects, scores would reveal to one tenant which words other tenants use.
    """
    return models.SearchParams(idf=models.IdfCorpusParams(corpus=project_filter(project_id)))


def project_filter(project_id: str) -> models.Filter:
    """Returns the filter for all points of the project.

    Raises:
        InternalError: ``TENANT_MISSING``: there is no project.
    """
    return models.Filter(must=[_project(project_id)])


def _project(project_id: str) -> models.FieldCondition:
    if not project_id.strip():
        raise InternalError("a search without a project", reason=Reason.TENANT_MISSING)
    return _matches(PROJECT_FIELD, models.MatchValue.model_construct(value=project_id))


def _value(collection: Collection, name: str, value: FilterValue) -> models.FieldCondition:
    if isinstance(value, bool):
        raise InternalError(f"a bool for {name}; see FieldKind")
    _check_indexed(collection, name)
    return _matches(name, models.MatchValue.model_construct(value=value))


def _any(collection: Collection, name: str, values: Sequence[FilterValue]) -> models.FieldCondition:
    _check_indexed(collection, name)
    strings = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int)]
    if strings and numbers:
        raise InternalError(f"values of two types for {name}")
    return _matches(name, models.MatchAny.model_construct(any=strings or numbers))


def _matches(name: str, match: models.Match) -> models.FieldCondition:
    return models.FieldCondition.model_construct(key=name, match=match)


def _period(
    collection: Collection, since: datetime | None, until: datetime | None
) -> models.FieldCondition:
    _check_indexed(collection, collection.time_field, FieldKind.DATETIME)
    if any(time is not None and time.tzinfo is None for time in (since, until)):
        raise InternalError("a time without a zone in a search")
    period = models.DatetimeRange(gte=since, lte=until)
    return models.FieldCondition(key=collection.time_field, range=period)


def _check_indexed(collection: Collection, name: str, kind: FieldKind | None = None) -> None:
    if name == DOCUMENT_FIELD and kind is None:
        return
    indexed_kind = collection.fields.get(name)
    if indexed_kind is None or (kind is not None and indexed_kind is not kind):
        raise InternalError(f"{collection.name} has no index on {name}")
