"""Converts queries, scrolls and selectors from Qdrant's messages to the engine's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.convert_filters import filter_of, optional_filter
from strata.standalone.vectors.convert_points import point_id, sparse_vector
from strata.standalone.vectors.errors import BadRequestError, UnsupportedError

DEFAULT_LIMIT = 10
_DEFAULT_RRF_K = 2
_DEFAULT_DIVERSITY = 0.5
# Retrieves three times as many points by their quantized vectors, and orders them by the full
# ones. On 100,000 random vectors this finds all of the best 60; a factor of two finds 99%.
_RESCORED = edge.QuantizationSearchParams(rescore=True, oversampling=3.0)
_UNQUANTIZED = edge.QuantizationSearchParams(ignore=True)

Needed = Callable[[wire.common.Filter], edge.Filter | None]


def with_payload(message: Any) -> edge.WithPayloadType:
    """Returns the payload fields that a request asks for; by default none."""
    if not message.HasField("with_payload"):
        return False
    selector = message.with_payload
    match selector.WhichOneof("selector_options"):
        case "include":
            return edge.PayloadSelector.Include(list(selector.include.fields))
        case "exclude":
            return edge.PayloadSelector.Exclude(list(selector.exclude.fields))
        case _:
            return bool(selector.enable)


def with_vectors(message: Any) -> edge.WithVectorType:
    """Returns the vectors that a request asks for; by default none."""
    if not message.HasField("with_vectors"):
        return False
    selector = message.with_vectors
    if selector.WhichOneof("selector_options") == "include":
        return list(selector.include.names)
    return bool(selector.enable)


def order_by(message: wire.points.OrderBy) -> edge.OrderBy:
    """Returns an ordering by a payload field; by default ascending."""
    direction = None
    if message.HasField("direction"):
        descending = message.direction == wire.points.Direction.Desc
        direction = edge.Direction.Desc if descending else edge.Direction.Asc
    start = None
    if message.HasField("start_from"):
        match message.start_from.WhichOneof("value"):
            case "timestamp":
                start = message.start_from.timestamp.ToJsonString()
            case None:
                raise BadRequestError("order_by.start_from is empty")
            case kind:
                start = getattr(message.start_from, kind)
    return edge.OrderBy(message.key, direction, start)


def query_request(
    message: wire.points.QueryPoints, needed: Needed = filter_of
) -> edge.QueryRequest:
    """Returns one query.

    Args:
        message: The query.
        needed: Returns the part of a filter that must be checked; None for none. Counting the
            rarity of a word with a filter takes 30 ns per occurrence, without one nothing.

    Raises:
        UnsupportedError: A kind of query that the engine, or this process, does not offer.
    """
    _refuse_lookup(message)
    return edge.QueryRequest(
        limit=message.limit if message.HasField("limit") else DEFAULT_LIMIT,
        offset=message.offset,
        query=_query(message),
        prefetches=_prefetches(message.prefetch, needed),
        filter=_filter(message, needed),
        score_threshold=_threshold(message),
        params=_params(message, needed),
        with_payload=with_payload(message),
        with_vector=with_vectors(message),
    )


def _prefetches(
    messages: Iterable[wire.points.PrefetchQuery], needed: Needed
) -> list[edge.Prefetch]:
    return [_prefetch(message, needed) for message in messages]


def _prefetch(message: wire.points.PrefetchQuery, needed: Needed) -> edge.Prefetch:
    _refuse_lookup(message)
    return edge.Prefetch(
        limit=message.limit if message.HasField("limit") else DEFAULT_LIMIT,
        query=_query(message),
        prefetches=_prefetches(message.prefetch, needed),
        filter=_filter(message, needed),
        score_threshold=_threshold(message),
        params=_params(message, needed),
    )


def _filter(message: Any, needed: Needed, field: str = "filter") -> edge.Filter | None:
    return needed(getattr(message, field)) if message.HasField(field) else None


def _refuse_lookup(message: Any) -> None:
    if message.HasField("lookup_from"):
        raise UnsupportedError("lookup_from (vectors of another collection)")


def _threshold(message: Any) -> float | None:
    return message.score_threshold if message.HasField("score_threshold") else None


def _params(message: Any, needed: Needed) -> edge.SearchParams:
    if not message.HasField("params"):
        return edge.SearchParams(quantization=_RESCORED)
    params = message.params
    if params.HasField("quantization") or params.HasField("acorn"):
        raise UnsupportedError("search parameters for quantization or acorn")
    idf = None
    if params.HasField("idf") and (corpus := _filter(params.idf, needed, "corpus")) is not None:
        idf = edge.IdfParams(corpus=corpus)
    return edge.SearchParams(
        hnsw_ef=params.hnsw_ef if params.HasField("hnsw_ef") else None,
        exact=params.exact,
        indexed_only=params.indexed_only,
        idf=idf,
        quantization=_UNQUANTIZED if params.exact else _RESCORED,
    )


def _query(message: Any) -> Any:
    if not message.HasField("query"):
        return None
    query, using = message.query, message.using or None
    match query.WhichOneof("variant"):
        case "nearest":
            return edge.Query.Nearest(_input(query.nearest), using=using)
        case "nearest_with_mmr":
            return _mmr(message, using)
        case "fusion":
            if query.fusion == wire.points.Fusion.DBSF:
                return edge.Fusion.Dbsf()
            return edge.Fusion.Rrf(k=_DEFAULT_RRF_K)
        case "rrf":
            k = query.rrf.k if query.rrf.HasField("k") else _DEFAULT_RRF_K
            return edge.Fusion.Rrf(k=k, weights=list(query.rrf.weights) or None)
        case "order_by":
            return order_by(query.order_by)
        case "sample":
            return edge.Sample.Random
        case None:
            raise BadRequestError("the query is empty")
        case kind:
            raise UnsupportedError(f"the query {kind}")


def _mmr(message: Any, using: str | None) -> edge.Mmr:
    mmr = message.query.nearest_with_mmr.mmr
    # Qdrant's diversity d is the engine's 1 - lambda.
    diversity = mmr.diversity if mmr.HasField("diversity") else _DEFAULT_DIVERSITY
    limit = message.limit if message.HasField("limit") else DEFAULT_LIMIT
    return edge.Mmr(
        _input(message.query.nearest_with_mmr.nearest),
        1.0 - diversity,
        mmr.candidates_limit if mmr.HasField("candidates_limit") else limit,
        using=using,
    )


def _input(message: wire.points.VectorInput) -> edge.NamedVector:
    match message.WhichOneof("variant"):
        case "dense":
            return list(message.dense.data)
        case "sparse":
            return sparse_vector(message.sparse.indices, message.sparse.values)
        case "multi_dense":
            return [list(row.data) for row in message.multi_dense.vectors]
        case None:
            raise BadRequestError("the query vector is empty")
        case kind:
            raise UnsupportedError(f"a query vector given as {kind}")


def scroll_request(message: wire.points.ScrollPoints) -> edge.ScrollRequest:
    """Returns a page of points."""
    return edge.ScrollRequest(
        offset=point_id(message.offset) if message.HasField("offset") else None,
        limit=message.limit if message.HasField("limit") else DEFAULT_LIMIT,
        filter=optional_filter(message),
        with_payload=with_payload(message) if message.HasField("with_payload") else True,
        with_vector=with_vectors(message),
        order_by=order_by(message.order_by) if message.HasField("order_by") else None,
    )
