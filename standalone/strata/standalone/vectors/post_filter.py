"""Searches that check broad conditions last (post-filtering).

The engine has no graph: it scores every point that passes the filter, and checking the time of
100,000 points takes longer than scoring all of them. So a search first retrieves more points than
requested without the broad conditions, and checks these conditions on the retrieved points only.
If enough points meet them, they are the best ones. If not, the search is repeated with all
conditions, and later searches retrieve more points.

A search by words checks only points with one of the words, so it always uses all conditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.convert_queries import DEFAULT_LIMIT, query_request
from strata.standalone.vectors.filter_rewriter import FilterRewriter, RewrittenFilter

# Factor on the number of points that should contain enough matches. With forty results and a
# condition that half of the points meet, fewer than 0.1% of the searches find too few, if the
# condition is independent of the scores.
_MARGIN = 1.25
_LEAST_EXTRA = 10
# Retrieving more points than this costs as much as checking the conditions.
_MOST_RETRIEVED = 600
# Points in a sample: the share that meets several conditions is then exact to about 0.1.
_SAMPLE = 100
_CAUTION = 0.9


@dataclass(frozen=True, slots=True)
class _LooseSearch:
    """A search without its broad conditions, and the number of points that it retrieves."""

    position: int
    rewritten: RewrittenFilter
    retrieved: int


def search(
    shard: edge.EdgeShard, rewriter: FilterRewriter, messages: Sequence[wire.points.QueryPoints]
) -> list[list[edge.ScoredPoint]]:
    """Returns the results of each query, in the order of the queries.

    Raises:
        UnsupportedError: A kind of query that the engine, or this process, does not offer.
        BadRequestError: A query or a condition that is empty.
    """
    requests = [query_request(message, rewriter.equivalent) for message in messages]
    results = _post_filtered(shard, requests, list(_loose_searches(messages, rewriter)))
    left = [position for position in range(len(requests)) if position not in results]
    results |= zip(left, _query_all(shard, [requests[position] for position in left]), strict=True)
    return [results[position] for position in range(len(requests))]


def _loose_searches(
    messages: Iterable[wire.points.QueryPoints], rewriter: FilterRewriter
) -> Iterator[_LooseSearch]:
    for position, message in enumerate(messages):
        if not _is_plain(message):
            continue
        rewritten = rewriter.rewritten(message.filter)
        if not rewritten.broad:
            continue
        limit = message.limit if message.HasField("limit") else DEFAULT_LIMIT
        sought = _MARGIN * limit + _LEAST_EXTRA
        if sought <= _MOST_RETRIEVED * rewritten.share:
            yield _LooseSearch(position, rewritten, math.ceil(sought / rewritten.share))


def _is_plain(message: wire.points.QueryPoints) -> bool:
    """Returns whether a query only orders points by their distance from a dense vector."""
    return (
        message.query.WhichOneof("variant") == "nearest"
        and message.query.nearest.WhichOneof("variant") == "dense"
        and message.HasField("filter")
        and not message.prefetch
        and not message.offset
    )


def _post_filtered(
    shard: edge.EdgeShard,
    requests: Sequence[edge.QueryRequest],
    loose_searches: Sequence[_LooseSearch],
) -> dict[int, list[edge.ScoredPoint]]:
    """Returns the results of the post-filtered searches that found enough, by query position."""
    results = {}
    best = _query_all(
        shard,
        [_without_broad_conditions(requests[loose.position], loose) for loose in loose_searches],
    )
    checked = _query_all(
        shard,
        [
            _check_conditions(points, requests[loose.position], loose)
            for loose, points in zip(loose_searches, best, strict=True)
        ],
    )
    for loose, points, within in zip(loose_searches, best, checked, strict=True):
        _learn_share(shard, loose.rewritten, points)
        # Also if fewer points than requested were retrieved: then there are no others.
        if len(within) >= requests[loose.position].limit or len(points) < loose.retrieved:
            results[loose.position] = within
        else:
            # Too few by chance, or because matches are rare among the best points. In that case a
            # few such searches lower the share until post-filtering is no longer tried.
            loose.rewritten.share = min(loose.rewritten.share, len(within) / len(points) * _CAUTION)
    return results


def _learn_share(
    shard: edge.EdgeShard, rewritten: RewrittenFilter, points: Sequence[edge.ScoredPoint]
) -> None:
    """Samples once which share of the best points meets all of several broad conditions.

    The estimate assumes independent conditions: two that half of the points meet give a quarter.
    If both are met by the same half, twice as many points as needed would be retrieved.
    """
    if not rewritten.sampled and len(rewritten.broad) > 1 and len(points) >= _SAMPLE:
        request = edge.CountRequest(True, edge.Filter(must=[_any_of(points), *rewritten.broad]))
        rewritten.share = max(rewritten.share, shard.count(request) / len(points) * _CAUTION)
        rewritten.sampled = True


def _any_of(points: Iterable[edge.ScoredPoint]) -> edge.HasIdCondition:
    return edge.HasIdCondition({point.id for point in points})


def _without_broad_conditions(request: edge.QueryRequest, loose: _LooseSearch) -> edge.QueryRequest:
    return edge.QueryRequest(
        limit=loose.retrieved,
        query=request.query,
        filter=loose.rewritten.rest,
        score_threshold=request.score_threshold,
        params=request.params,
    )


def _check_conditions(
    points: Iterable[edge.ScoredPoint], request: edge.QueryRequest, loose: _LooseSearch
) -> edge.QueryRequest:
    return edge.QueryRequest(
        limit=request.limit,
        query=request.query,
        filter=edge.Filter(must=[_any_of(points), *loose.rewritten.broad]),
        score_threshold=request.score_threshold,
        params=request.params,
        with_payload=request.with_payload,
        with_vector=request.with_vector,
    )


def _query_all(
    shard: edge.EdgeShard, requests: list[edge.QueryRequest]
) -> list[list[edge.ScoredPoint]]:
    return shard.query_batch(edge.QueryBatchRequest(requests)) if requests else []
