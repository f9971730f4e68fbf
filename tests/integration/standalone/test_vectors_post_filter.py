"""Searches with a post-filter find the same points as plain searches."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import qdrant_edge as edge
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors import filter_rewriter, post_filter
from strata.standalone.vectors.convert_queries import query_request
from strata.standalone.vectors.filter_rewriter import FilterRewriter
from strata.standalone.vectors.post_filter import search

DENSE, SPARSE = "dense", "words"
POINTS = st.lists(
    st.tuples(st.integers(0, 9), st.sets(st.sampled_from("abc")), st.sets(st.integers(0, 4))),
    min_size=1,
    max_size=60,
)


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[edge.EdgeShard]:
    with closing(new_shard(str(tmp_path))) as made:
        yield made


@pytest.fixture
def broad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_rewriter, "_MANY_POINTS", 1)


def new_shard(folder: str) -> edge.EdgeShard:
    made = edge.EdgeShard.create(
        folder,
        edge.EdgeConfig(
            vectors={DENSE: edge.EdgeVectorParams(size=2, distance=edge.Distance.Cosine)},
            sparse_vectors={SPARSE: edge.EdgeSparseVectorParams()},
        ),
    )
    kinds = {"number": edge.PayloadSchemaType.Integer, "tags": edge.PayloadSchemaType.Keyword}
    for name, kind in kinds.items():
        made.update(edge.UpdateOperation.create_field_index(name, kind))
    return made


def put(shard: edge.EdgeShard, points: list[tuple[int, set[str], set[int]]]) -> None:
    """Stores points at different angles, so that no two have the same score."""
    made = []
    for number, (value, tags, words) in enumerate(points, start=1):
        angle = number / (len(points) + 1)
        vectors: dict[str, Any] = {DENSE: [math.cos(angle), math.sin(angle)]}
        if words:
            vectors[SPARSE] = edge.SparseVector(sorted(words), [1.0 + number / 1000] * len(words))
        made.append(edge.Point(number, vectors, {"number": value, "tags": sorted(tags)}))
    shard.update(edge.UpdateOperation.upsert_points(made))


def at_least(value: int) -> wire.common.Condition:
    condition = wire.common.FieldCondition(key="number")
    condition.range.gte = value
    return wire.common.Condition(field=condition)


def tagged(tag: str) -> wire.common.Condition:
    match = wire.common.Match(keyword=tag)
    return wire.common.Condition(field=wire.common.FieldCondition(key="tags", match=match))


def dense(limit: int, *must: wire.common.Condition, **more: Any) -> wire.points.QueryPoints:
    message = wire.points.QueryPoints(using=DENSE, limit=limit, **more)
    message.query.nearest.dense.data.extend([1.0, 0.0])
    message.filter.must.extend(must)
    message.with_payload.include.fields.append("number")
    return message


def sparse(limit: int, *must: wire.common.Condition) -> wire.points.QueryPoints:
    message = wire.points.QueryPoints(using=SPARSE, limit=limit)
    message.query.nearest.sparse.indices.extend([0, 1])
    message.query.nearest.sparse.values.extend([1.0, 0.5])
    message.filter.must.extend(must)
    return message


def comparable(hits: list[edge.ScoredPoint]) -> list[tuple[Any, ...]]:
    return [(hit.id, pytest.approx(hit.score), hit.payload) for hit in hits]


def plainly(shard: edge.EdgeShard, message: wire.points.QueryPoints) -> list[tuple[Any, ...]]:
    return comparable(shard.query(query_request(message)))


@given(
    points=POINTS,
    asked=st.lists(
        st.tuples(
            st.booleans(),
            st.integers(1, 12),
            st.lists(
                st.builds(at_least, st.integers(0, 9)) | st.builds(tagged, st.sampled_from("abc")),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    threshold=st.none() | st.floats(0.5, 1.0),
    share=st.sampled_from([0.001, 0.3, 0.8]),
    sample=st.sampled_from([1, 10]),
    more=st.integers(0, 3),
)
@settings(max_examples=30)
def test_a_search_finds_the_results_of_a_plain_search(
    points: list[tuple[int, set[str], set[int]]],
    asked: list[tuple[bool, int, list[wire.common.Condition]]],
    threshold: float | None,
    share: float,
    sample: int,
    more: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(filter_rewriter, "_MANY_POINTS", 1)
        patch.setattr(filter_rewriter, "_BROAD", share)
        patch.setattr(post_filter, "_SAMPLE", sample)
        # Retrieves only a few candidates more than requested, so that often too few pass.
        patch.setattr(post_filter, "_MARGIN", 1.0)
        patch.setattr(post_filter, "_LEAST_EXTRA", more)
        with closing(new_shard(folder)) as shard:
            put(shard, points)
            known = FilterRewriter(shard)
            messages = [(dense if close else sparse)(limit, *must) for close, limit, must in asked]
            if threshold is not None:
                messages[0].score_threshold = threshold
            for _ in range(2):  # statistics of the first search must not change the results
                results = search(shard, known, messages)
                assert [comparable(hits) for hits in results] == [
                    plainly(shard, message) for message in messages
                ]


class Spy:
    """A shard that records the filter of each search."""

    def __init__(self, shard: edge.EdgeShard) -> None:
        self._shard = shard
        self.searched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def query_batch(self, asked: edge.QueryBatchRequest) -> Any:
        self.searched += [repr(query.filter) for query in asked.queries]
        return self._shard.query_batch(asked)


def test_a_broad_condition_is_checked_on_the_best_points_only(
    shard: edge.EdgeShard, broad: None
) -> None:
    put(shard, [(number % 10, {"a"}, {0}) for number in range(100)])
    spy: Any = Spy(shard)
    message = dense(10, at_least(5))
    [hits] = search(spy, FilterRewriter(shard), [message])
    assert comparable(hits) == plainly(shard, message)
    assert len(hits) == 10
    first, second = spy.searched
    assert first == "None"
    assert "has_id" in second.lower() or "HasId" in second


def test_if_the_best_points_fail_the_condition_post_filtering_stops(
    shard: edge.EdgeShard, broad: None
) -> None:
    # The nearest points are stored first, and none of the first half is within the range.
    put(shard, [(number // 100, {"a"}, {0}) for number in range(1000)])
    spy: Any = Spy(shard)
    known, message = FilterRewriter(shard), dense(10, at_least(5))
    assert comparable(search(spy, known, [message])[0]) == plainly(shard, message)
    assert len(spy.searched) == 3
    assert comparable(search(spy, known, [message])[0]) == plainly(shard, message)
    assert len(spy.searched) == 4


def test_if_too_few_points_match_the_next_search_retrieves_more(
    shard: edge.EdgeShard, broad: None
) -> None:
    # Three of ten are within the range among the best points, nine of ten among the others.
    values = [9 if number % 10 < (3 if number < 100 else 9) else 0 for number in range(300)]
    put(shard, [(value, {"a"}, {0}) for value in values])
    spy: Any = Spy(shard)
    known, message = FilterRewriter(shard), dense(20, at_least(5))
    estimated = known.rewritten(message.filter).share
    assert estimated == pytest.approx(0.7, abs=0.05)
    for searches in (3, 2, 2):
        before = len(spy.searched)
        assert comparable(search(spy, known, [message])[0]) == plainly(shard, message)
        assert len(spy.searched) == before + searches
    assert 0 < known.rewritten(message.filter).share < 0.5


def test_a_search_by_words_is_not_post_filtered(shard: edge.EdgeShard, broad: None) -> None:
    put(shard, [(number % 10, {"a"}, {0}) for number in range(100)])
    spy: Any = Spy(shard)
    message = sparse(10, at_least(5))
    assert comparable(search(spy, FilterRewriter(shard), [message])[0]) == plainly(shard, message)
    assert len(spy.searched) == 1


def test_correlated_conditions_are_sampled(shard: edge.EdgeShard, broad: None) -> None:
    put(shard, [(number % 2 * 9, {"a"} if number % 2 else {"b"}, {0}) for number in range(600)])
    known, message = FilterRewriter(shard), dense(20, at_least(5), tagged("a"))
    rewritten = known.rewritten(message.filter)
    assert rewritten.share == pytest.approx(0.25, abs=0.05)
    for _ in range(2):
        assert comparable(search(shard, known, [message])[0]) == plainly(shard, message)
        assert rewritten.share == pytest.approx(0.45, abs=0.02)


@pytest.mark.parametrize(
    "message",
    [
        dense(10, at_least(5), offset=5),
        dense(2_000, at_least(5)),
        dense(10, at_least(5), prefetch=[wire.points.PrefetchQuery(limit=50)]),
    ],
)
def test_other_searches_are_not_post_filtered(
    shard: edge.EdgeShard, broad: None, message: wire.points.QueryPoints
) -> None:
    put(shard, [(number % 10, {"a"}, {0}) for number in range(100)])
    spy: Any = Spy(shard)
    if message.prefetch:
        message.prefetch[0].query.nearest.dense.data.extend([0.0, 1.0])
        message.prefetch[0].using = DENSE
    [hits] = search(spy, FilterRewriter(shard), [message])
    assert comparable(hits) == plainly(shard, message)
    assert len(spy.searched) == 1
