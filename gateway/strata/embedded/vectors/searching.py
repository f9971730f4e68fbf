"""Searches that leave the conditions which most points meet to the end.

The engine has no graph: it scores every point that passes the filter, and to look at the time of
a hundred thousand points takes longer than to score them all. So the best are taken without such
conditions, more than are asked for, and only of these is it checked whether they meet them. When
enough do, they are the best of all that do. When not, the search is made as it was asked, and the
next one takes more of the best.

A search by words looks at the points only that have one of them, and is made as it was asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import qdrant_edge as edge

from strata.embedded.vectors import wire
from strata.embedded.vectors.convert_queries import DEFAULT_LIMIT, query_request
from strata.embedded.vectors.filter_rewriter import FilterRewriter, RewrittenFilter

# So much more than what should hold as many as are asked for: of forty by a condition that half of
# the points meet, enough do in all but some in ten thousand searches, if it says nothing about
# the scores.
_MARGIN = 1.25
_AT_LEAST_MORE = 10
# To take more of the best than this costs as much as the conditions.
_MOST_TAKEN = 600
# So many points tell which part of them meets several conditions, give or take a tenth.
_SAMPLE = 100
_CAUTION = 0.9


@dataclass(frozen=True, slots=True)
class _Guess:
    """A search without its broad conditions, and how many of the best it takes."""

    place: int
    narrowed: RewrittenFilter
    taken: int


def search(
    shard: edge.EdgeShard, narrowing: FilterRewriter, messages: Sequence[wire.points.QueryPoints]
) -> list[list[edge.ScoredPoint]]:
    """Returns what each query finds, in the order of the queries.

    Raises:
        UnsupportedError: A kind of query that the engine, or this process, does not offer.
        BadRequestError: A query or a condition that is empty.
    """
    requests = [query_request(message, narrowing.needed) for message in messages]
    guessed = _guessed(shard, requests, list(_guesses(messages, narrowing)))
    left = [place for place in range(len(requests)) if place not in guessed]
    guessed |= zip(left, _query_all(shard, [requests[place] for place in left]), strict=True)
    return [guessed[place] for place in range(len(requests))]


def _guesses(
    messages: Iterable[wire.points.QueryPoints], narrowing: FilterRewriter
) -> Iterator[_Guess]:
    for place, message in enumerate(messages):
        if not _is_plain(message):
            continue
        narrowed = narrowing.of(message.filter)
        if not narrowed.broad:
            continue
        limit = message.limit if message.HasField("limit") else DEFAULT_LIMIT
        wanted = _MARGIN * limit + _AT_LEAST_MORE
        if wanted <= _MOST_TAKEN * narrowed.share:
            yield _Guess(place, narrowed, math.ceil(wanted / narrowed.share))


def _is_plain(message: wire.points.QueryPoints) -> bool:
    """Whether a query orders points by their distance from a dense vector, and by nothing else."""
    return (
        message.query.WhichOneof("variant") == "nearest"
        and message.query.nearest.WhichOneof("variant") == "dense"
        and message.HasField("filter")
        and not message.prefetch
        and not message.offset
    )


def _guessed(
    shard: edge.EdgeShard, requests: Sequence[edge.QueryRequest], guesses: Sequence[_Guess]
) -> dict[int, list[edge.ScoredPoint]]:
    """What was found by checking the best alone, by the place of the query."""
    results = {}
    best = _query_all(shard, [_loosened(requests[guess.place], guess) for guess in guesses])
    checked = _query_all(
        shard,
        [
            _among(points, requests[guess.place], guess)
            for guess, points in zip(guesses, best, strict=True)
        ],
    )
    for guess, points, within in zip(guesses, best, checked, strict=True):
        _learn_share(shard, guess.narrowed, points)
        # Fewer than were asked for are all that there are.
        if len(within) >= requests[guess.place].limit or len(points) < guess.taken:
            results[guess.place] = within
        else:
            # By chance, or since what meets the conditions is rare among the best: then a few
            # such searches bring the share down to where none is tried any more.
            guess.narrowed.share = min(guess.narrowed.share, len(within) / len(points) * _CAUTION)
    return results


def _learn_share(
    shard: edge.EdgeShard, narrowed: RewrittenFilter, points: Sequence[edge.ScoredPoint]
) -> None:
    """Sees once how many of the best meet all of several broad conditions.

    By the estimates of each alone, a quarter meets two that half of the points meet, and twice as
    many are taken as are needed if they are the same half.
    """
    if not narrowed.sampled and len(narrowed.broad) > 1 and len(points) >= _SAMPLE:
        asked = edge.CountRequest(True, edge.Filter(must=[_any_of(points), *narrowed.broad]))
        narrowed.share = max(narrowed.share, shard.count(asked) / len(points) * _CAUTION)
        narrowed.sampled = True


def _any_of(points: Iterable[edge.ScoredPoint]) -> edge.HasIdCondition:
    return edge.HasIdCondition({point.id for point in points})


def _loosened(request: edge.QueryRequest, guess: _Guess) -> edge.QueryRequest:
    return edge.QueryRequest(
        limit=guess.taken,
        query=request.query,
        filter=guess.narrowed.rest,
        score_threshold=request.score_threshold,
        params=request.params,
    )


def _among(
    points: Iterable[edge.ScoredPoint], request: edge.QueryRequest, guess: _Guess
) -> edge.QueryRequest:
    return edge.QueryRequest(
        limit=request.limit,
        query=request.query,
        filter=edge.Filter(must=[_any_of(points), *guess.narrowed.broad]),
        score_threshold=request.score_threshold,
        params=request.params,
        with_payload=request.with_payload,
        with_vector=request.with_vector,
    )


def _query_all(
    shard: edge.EdgeShard, requests: list[edge.QueryRequest]
) -> list[list[edge.ScoredPoint]]:
    return shard.query_batch(edge.QueryBatchRequest(requests)) if requests else []
