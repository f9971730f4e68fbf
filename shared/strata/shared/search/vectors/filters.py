"""Converts `Where` to the engine's filter; the tenant is a separate, required argument."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache

from google.protobuf.timestamp_pb2 import Timestamp

from strata.protocol.errors import InternalError, Reason
from strata.shared.search.qdrant_wire import common, points
from strata.shared.search.vectors.index import (
    CHUNK_FIELD,
    DOCUMENT_FIELD,
    PROJECT_FIELD,
    Collection,
    FieldKind,
    FilterValue,
    Where,
)


def tenant_filter(collection: Collection, project_id: str, where: Where) -> common.Filter:
    """Returns the filter of a request on documents: the project first, then the conditions.

    Raises:
        InternalError: ``TENANT_MISSING``: there is no project. ``INTERNAL``: a field is not indexed
            (the engine would scan all points), or a time has no time zone.
    """
    must = [_project(project_id)]
    must += [_value(collection, name, value) for name, value in where.eq.items()]
    must += [_any(collection, name, values) for name, values in where.any_of.items()]
    must += [
        _value(collection, name, value) for name, values in where.all_of.items() for value in values
    ]
    if where.since is not None or where.until is not None:
        must.append(_period(collection, where.since, where.until))
    must_not = [_any(collection, name, values) for name, values in where.none_of.items() if values]
    return common.Filter(must=must, must_not=must_not)


def documents_filter(
    project_id: str, document_ids: Iterable[str], *, from_chunk: int = 0
) -> common.Filter:
    """Returns the filter for the points of some documents, optionally from a chunk number on.

    Raises:
        InternalError: ``TENANT_MISSING``: there is no project.
    """
    documents = common.RepeatedStrings(strings=document_ids)
    must = [_project(project_id), _matches(DOCUMENT_FIELD, common.Match(keywords=documents))]
    if from_chunk:
        surplus = common.FieldCondition(key=CHUNK_FIELD, range=common.Range(gte=from_chunk))
        must.append(common.Condition(field=surplus))
    return common.Filter(must=must)


def first_chunks(conditions: common.Filter) -> common.Filter:
    """Returns a filter for the first chunks only: one point of each document."""
    first = _matches(CHUNK_FIELD, common.Match(integer=0))
    return common.Filter(must=[*conditions.must, first], must_not=conditions.must_not)


@lru_cache(maxsize=1_000)
def tenant_corpus(project_id: str) -> points.SearchParams:
    """Returns parameters that make the engine count the rarity of words within the project only.

    Counted over all projects, scores would reveal to one tenant which words other tenants use.
    The message is cached: copy it, do not change it.
    """
    corpus = points.IdfParams(corpus=project_filter(project_id))
    return points.SearchParams(exact=False, indexed_only=False, idf=corpus)


def project_filter(project_id: str) -> common.Filter:
    """Returns the filter for all points of the project.

    Raises:
        InternalError: ``TENANT_MISSING``: there is no project.
    """
    return common.Filter(must=[_project(project_id)])


def _project(project_id: str) -> common.Condition:
    if not project_id.strip():
        raise InternalError("a search without a project", reason=Reason.TENANT_MISSING)
    return _matches(PROJECT_FIELD, common.Match(keyword=project_id))


def _value(collection: Collection, name: str, value: FilterValue) -> common.Condition:
    if isinstance(value, bool):
        raise InternalError(f"a bool for {name}; see FieldKind")
    _check_indexed(collection, name)
    match = common.Match(keyword=value) if isinstance(value, str) else common.Match(integer=value)
    return _matches(name, match)


def _any(collection: Collection, name: str, values: Sequence[FilterValue]) -> common.Condition:
    _check_indexed(collection, name)
    strings = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int)]
    if strings and numbers:
        raise InternalError(f"values of two types for {name}")
    if numbers:
        return _matches(name, common.Match(integers=common.RepeatedIntegers(integers=numbers)))
    return _matches(name, common.Match(keywords=common.RepeatedStrings(strings=strings)))


def _period(
    collection: Collection, since: datetime | None, until: datetime | None
) -> common.Condition:
    _check_indexed(collection, collection.time_field, FieldKind.DATETIME)
    if any(time is not None and time.tzinfo is None for time in (since, until)):
        raise InternalError("a time without a zone in a search")
    period = common.DatetimeRange(gte=_timestamp(since), lte=_timestamp(until))
    field = common.FieldCondition(key=collection.time_field, datetime_range=period)
    return common.Condition(field=field)


def _timestamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def _matches(name: str, match: common.Match) -> common.Condition:
    return common.Condition(field=common.FieldCondition(key=name, match=match))


def _check_indexed(collection: Collection, name: str, kind: FieldKind | None = None) -> None:
    if name == DOCUMENT_FIELD and kind is None:
        return
    indexed_kind = collection.fields.get(name)
    if indexed_kind is None or (kind is not None and indexed_kind is not kind):
        raise InternalError(f"{collection.name} has no index on {name}")
