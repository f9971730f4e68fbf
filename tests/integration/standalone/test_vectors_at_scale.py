"""Optimizations for large collections find the same points as plain searches."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client import models

from integration.standalone.vector_points import connect
from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors import EmbeddedVectors, filter_rewriter
from strata.standalone.vectors.convert_filters import filter_of
from strata.standalone.vectors.filter_rewriter import FilterRewriter
from strata.standalone.vectors.store import CollectionStore

DIM = 384
COUNT = 3_000
BEST = 20


async def test_quantized_vectors_find_the_same_results_as_full_ones(open_folder: Path) -> None:
    draw = np.random.default_rng(5)
    stored = draw.standard_normal((COUNT, DIM), dtype=np.float32)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    asked = draw.standard_normal((8, DIM), dtype=np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    engine = EmbeddedVectors(open_folder / "vectors")
    await engine.start()
    client = connect(engine)
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    await client.create_collection("things", vectors_config={"dense": params})

    async def same(left: set[int]) -> None:
        exact = models.SearchParams(exact=True)
        for query in asked:
            cosines = stored @ query
            wanted = sorted(left, key=lambda number: -cosines[number])[:BEST]
            for how in (None, exact):
                results = (
                    await client.query_points(
                        "things",
                        query=query.tolist(),
                        using="dense",
                        limit=BEST,
                        search_params=how,
                    )
                ).points
                assert [point.id for point in results] == wanted
                expected = [float(cosines[number]) for number in wanted]
                assert [point.score for point in results] == pytest.approx(expected, abs=1e-5)

    for start in range(0, COUNT, 500):
        points = [
            models.PointStruct(id=number, vector={"dense": stored[number].tolist()})
            for number in range(start, start + 500)
        ]
        await client.upsert("things", points, wait=True)
    everything = set(range(COUNT))
    await same(everything)
    best = int(np.argmax(stored @ asked[0]))
    await client.delete("things", [best], wait=True)
    await same(everything - {best})
    # Quantized vectors are derived data, which is built again after the process was killed.
    assert engine.pid is not None
    died = engine.restarts
    os.kill(engine.pid, signal.SIGKILL)
    while engine.restarts == died or not await _answers(client):
        await asyncio.sleep(0.1)
    await same(everything - {best})
    await client.close()
    await engine.stop()


async def _answers(client: Any) -> bool:
    try:
        await client.get_collections()
    except Exception:
        return False
    return True


def new_shard(folder: str) -> edge.EdgeShard:
    vectors = {"dense": edge.EdgeVectorParams(size=2, distance=edge.Distance.Cosine)}
    made = edge.EdgeShard.create(folder, edge.EdgeConfig(vectors=vectors))
    index = edge.KeywordIndexParams(is_tenant=True)
    made.update(edge.UpdateOperation.create_field_index("project", index))
    return made


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[edge.EdgeShard]:
    with closing(new_shard(str(tmp_path))) as made:
        yield made


def put(shard: edge.EdgeShard, *projects: str) -> None:
    points = [
        edge.Point(number, {"dense": [1.0, 0.0]}, {"project": project, "other": "x"})
        for number, project in enumerate(projects, start=1)
    ]
    shard.update(edge.UpdateOperation.upsert_points(points))


def keyword(field: str, value: str) -> wire.common.Condition:
    match = wire.common.Match(keyword=value)
    return wire.common.Condition(field=wire.common.FieldCondition(key=field, match=match))


def left_of(shard: edge.EdgeShard, condition: wire.common.Filter) -> str | None:
    """Returns the remaining filter as text; None if all conditions were dropped."""
    needed = FilterRewriter(shard).equivalent(condition)
    return None if needed is None else repr(needed)


def test_a_condition_is_dropped_only_while_every_point_meets_it(shard: edge.EdgeShard) -> None:
    mine = wire.common.Filter(must=[keyword("project", "a")])
    whole = repr(filter_of(mine))
    put(shard, "a", "a", "a")
    assert left_of(shard, mine) is None
    put(shard, "a", "a", "a", "b")
    assert left_of(shard, mine) == whole
    nobodys = wire.common.Filter(must=[keyword("project", "c")])
    assert left_of(shard, nobodys) == repr(filter_of(nobodys))
    shard.update(edge.UpdateOperation.delete_points([4]))
    assert left_of(shard, mine) is None
    shard.update(edge.UpdateOperation.set_payload([2], {"project": "b"}))
    assert left_of(shard, mine) == whole


def test_only_conditions_that_every_point_meets_are_dropped(shard: edge.EdgeShard) -> None:
    put(shard, "a", "a")
    mine, other, none = keyword("project", "a"), keyword("other", "x"), keyword("project", "b")
    either = wire.common.Condition(
        field=wire.common.FieldCondition(
            key="project",
            match=wire.common.Match(keywords=wire.common.RepeatedStrings(strings=["a", "b"])),
        )
    )
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"must": [mine, other]}, {"must": [other]}),  # `other` is not indexed
        ({"must": [mine], "must_not": [none]}, {"must_not": [none]}),
        ({"must": [mine], "should": [mine]}, {"should": [mine]}),
        ({"must": [none, mine]}, {"must": [none]}),
        ({"must": [either]}, {"must": [either]}),
        ({"should": [mine]}, {"should": [mine]}),
        ({}, {}),
    ]
    for conditions, left in cases:
        needed = left_of(shard, wire.common.Filter(**conditions))
        assert needed == repr(filter_of(wire.common.Filter(**left)))


FIELDS = {"project": ("a", "b"), "archive": ("x", "y", "z"), "tag": ("s", "t")}
PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from(values) | st.lists(st.sampled_from(values), max_size=3)
        for name, values in FIELDS.items()
    },
)
CONDITIONS = st.dictionaries(
    st.sampled_from(list(FIELDS)), st.integers(0, 2), min_size=1, max_size=3
).map(lambda numbers: {name: FIELDS[name][n % len(FIELDS[name])] for name, n in numbers.items()})
IDS = st.integers(1, 6)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), IDS, PAYLOADS),
        st.tuples(st.just("set"), IDS, PAYLOADS),
        st.tuples(st.just("overwrite"), IDS, PAYLOADS),
        st.tuples(st.just("delete"), IDS, st.just({})),
    ),
    min_size=1,
    max_size=12,
)


@given(
    changes=CHANGES,
    asked=st.lists(CONDITIONS, min_size=1, max_size=4),
    opened_anew=st.booleans(),
)
@settings(max_examples=30)
def test_a_rewritten_filter_finds_the_same_points(
    changes: list[tuple[str, int, dict[str, str | list[str]]]],
    asked: list[dict[str, str]],
    opened_anew: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        shard = new_shard(folder)
        for name in ("archive", "tag"):
            kind = edge.PayloadSchemaType.Keyword
            shard.update(edge.UpdateOperation.create_field_index(name, kind))
        stored: dict[int, dict[str, str | list[str]]] = {}
        operation = edge.UpdateOperation
        for verb, number, payload in changes:
            if verb == "put":
                stored[number] = payload
                point = edge.Point(number, {"dense": [1.0, 0.0]}, dict(payload))
                shard.update(operation.upsert_points([point]))
            elif verb == "delete":
                stored.pop(number, None)
                shard.update(operation.delete_points([number]))
            elif number in stored:
                stored[number] = payload if verb == "overwrite" else {**stored[number], **payload}
                change = (
                    operation.overwrite_payload if verb == "overwrite" else operation.set_payload
                )
                shard.update(change([number], dict(payload)))
        if opened_anew:
            shard.close()
            shard = edge.EdgeShard.load(folder)
        stack.callback(shard.close)
        for conditions in asked:
            message = wire.common.Filter(must=[keyword(*pair) for pair in conditions.items()])
            rewritten = FilterRewriter(shard).equivalent(message)
            ids = {hit.id for hit in shard.query(nearest(rewritten))}
            assert ids == {
                number
                for number, held in stored.items()
                if all(value in as_list(held.get(name)) for name, value in conditions.items())
            }


NUMBERS = st.integers(0, 9)
# One bound on each side: of two, the engine's index uses only one when it selects points.
LOWER, UPPER = (
    st.dictionaries(st.sampled_from(names), NUMBERS, max_size=1)
    for names in (["gt", "gte"], ["lt", "lte"])
)
RANGES = st.builds(lambda lower, upper: lower | upper, LOWER, UPPER).filter(bool)


@given(
    stored=st.lists(st.none() | st.lists(NUMBERS, max_size=3), min_size=1, max_size=12),
    asked=st.lists(st.tuples(st.sampled_from(["number", "time"]), RANGES), min_size=1, max_size=2),
    word=st.booleans(),
)
@settings(max_examples=40)
def test_a_broad_range_checked_by_point_finds_the_same_points(
    stored: list[list[int] | None], asked: list[tuple[str, dict[str, int]]], word: bool
) -> None:
    operation = edge.UpdateOperation
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        shard = new_shard(folder)
        stack.callback(shard.close)
        shard.update(operation.create_field_index("number", edge.PayloadSchemaType.Integer))
        shard.update(operation.create_field_index("time", edge.PayloadSchemaType.Datetime))
        for number, held in enumerate(stored, start=1):
            payload: dict[str, Any] = {"project": "ab"[number % 2]}
            if held is not None:
                payload |= {"number": held, "time": [time_of(number) for number in held]}
            point = edge.Point(number, {"dense": [1.0, 0.0]}, payload)
            shard.update(operation.upsert_points([point]))
        must = [range_of(field, bounds) for field, bounds in asked]
        if word:
            must.append(keyword("project", "a"))
        message = wire.common.Filter(must=must)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(filter_rewriter, "_MANY_POINTS", 1)
            patch.setattr(filter_rewriter, "_BROAD", 0)
            rewritten = FilterRewriter(shard).equivalent(message)
        ids = {hit.id for hit in shard.query(nearest(rewritten))}
        assert ids == {
            number
            for number, held in enumerate(stored, start=1)
            if (not word or number % 2 == 0)
            and all(any(within(number, bounds) for number in held or ()) for _, bounds in asked)
        }
        assert ids == {hit.id for hit in shard.query(nearest(filter_of(message)))}


def test_only_a_broad_range_of_many_points_is_checked_by_point(
    shard: edge.EdgeShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = edge.UpdateOperation
    shard.update(operation.create_field_index("number", edge.PayloadSchemaType.Integer))
    points = [
        edge.Point(number, {"dense": [1.0, 0.0]}, {"number": number}) for number in range(1, 101)
    ]
    shard.update(operation.upsert_points(points))
    broad = wire.common.Filter(must=[range_of("number", {"gte": 50})])
    narrow = wire.common.Filter(must=[range_of("number", {"gte": 98})])
    unindexed = wire.common.Filter(must=[range_of("other", {"gte": 0})])
    assert left_of(shard, broad) == repr(filter_of(broad))  # few points
    monkeypatch.setattr(filter_rewriter, "_MANY_POINTS", 100)
    denied = wire.common.Condition(filter=wire.common.Filter(must_not=broad.must))
    assert left_of(shard, broad) == repr(filter_of(wire.common.Filter(must_not=[denied])))
    assert left_of(shard, narrow) == repr(filter_of(narrow))
    assert left_of(shard, unindexed) == repr(filter_of(unindexed))


def within(number: int, bounds: dict[str, int]) -> bool:
    compare = {"lt": number.__lt__, "lte": number.__le__, "gt": number.__gt__, "gte": number.__ge__}
    return all(compare[name](bound) for name, bound in bounds.items())


def range_of(field: str, bounds: dict[str, int]) -> wire.common.Condition:
    condition = wire.common.FieldCondition(key=field)
    for name, bound in bounds.items():
        if field == "time":
            getattr(condition.datetime_range, name).FromJsonString(time_of(bound))
        else:
            setattr(condition.range, name, bound)
    return wire.common.Condition(field=condition)


def time_of(number: int) -> str:
    return f"2026-01-{number + 1:02}T00:00:00Z"


def nearest(condition: edge.Filter | None) -> edge.QueryRequest:
    return edge.QueryRequest(
        limit=20,
        offset=0,
        query=edge.Query.Nearest([1.0, 0.0], using="dense"),
        filter=condition,
        with_payload=False,
        with_vector=False,
    )


@given(changes=CHANGES)
@settings(max_examples=30)
def test_a_write_to_a_collection_resets_its_filter_rewriter(
    changes: list[tuple[str, int, dict[str, str | list[str]]]],
) -> None:
    mine = wire.common.Filter(must=[keyword("project", "a")])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = CollectionStore(Path(folder))
        stack.callback(store.close)
        vectors = wire.collections.VectorsConfig(
            params=wire.collections.VectorParams(size=2, distance=wire.collections.Distance.Cosine)
        )
        store.create(wire.collections.CreateCollection(collection_name="c", vectors_config=vectors))
        index = edge.KeywordIndexParams(is_tenant=True)
        store.update("c", [edge.UpdateOperation.create_field_index("project", index)])
        for verb, number, payload in changes:
            with suppress(Exception):  # of a point that is not there
                store.update("c", [change_of(verb, number, payload)])
            known = store.filter_rewriter("c")
            assert store.filter_rewriter("c") is known  # until the next write
            anew = FilterRewriter(store.shard("c"))
            assert repr(known.equivalent(mine)) == repr(anew.equivalent(mine))


def change_of(verb: str, number: int, payload: dict[str, str | list[str]]) -> edge.UpdateOperation:
    operation = edge.UpdateOperation
    match verb:
        case "put":
            return operation.upsert_points([edge.Point(number, {"": [1.0, 0.0]}, dict(payload))])
        case "set":
            return operation.set_payload([number], dict(payload))
        case "overwrite":
            return operation.overwrite_payload([number], dict(payload))
        case _:
            return operation.delete_points([number])


def as_list(value: str | list[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value
