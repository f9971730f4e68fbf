"""Shortcuts that make large collections fast find the same as the long way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from qdrant_client import models

from strata.embedded.vectors import EmbeddedVectors, wire
from strata.embedded.vectors.servicers.points import covers_all
from strata.shared.vectors.qdrant import connect

DIM = 384
COUNT = 3_000
BEST = 20


async def test_quantized_vectors_find_what_whole_ones_find(open_folder: Path) -> None:
    draw = np.random.default_rng(5)
    stored = draw.standard_normal((COUNT, DIM), dtype=np.float32)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    asked = draw.standard_normal((8, DIM), dtype=np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    engine = EmbeddedVectors(open_folder / "vectors")
    await engine.start()
    client = connect(engine.url, engine.api_key)
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    await client.create_collection("things", vectors_config={"dense": params})

    async def same(left: set[int]) -> None:
        exact = models.SearchParams(exact=True)
        for query in asked:
            cosines = stored @ query
            wanted = sorted(left, key=lambda number: -cosines[number])[:BEST]
            for how in (None, exact):
                found = (
                    await client.query_points(
                        "things",
                        query=query.tolist(),
                        using="dense",
                        limit=BEST,
                        search_params=how,
                    )
                ).points
                assert [point.id for point in found] == wanted
                expected = [float(cosines[number]) for number in wanted]
                assert [point.score for point in found] == pytest.approx(expected, abs=1e-5)

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
    # What is quantized is derived: it is there again after a death.
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


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[edge.EdgeShard]:
    vectors = {"dense": edge.EdgeVectorParams(size=2, distance=edge.Distance.Cosine)}
    made = edge.EdgeShard.create(str(tmp_path), edge.EdgeConfig(vectors=vectors))
    index = edge.KeywordIndexParams(is_tenant=True)
    made.update(edge.UpdateOperation.create_field_index("project", index))
    yield made
    made.close()


def put(shard: edge.EdgeShard, *projects: str) -> None:
    points = [
        edge.Point(number, {"dense": [1.0, 0.0]}, {"project": project, "other": "x"})
        for number, project in enumerate(projects, start=1)
    ]
    shard.update(edge.UpdateOperation.upsert_points(points))


def keyword(field: str, value: str) -> wire.common.Condition:
    match = wire.common.Match(keyword=value)
    return wire.common.Condition(field=wire.common.FieldCondition(key=field, match=match))


def test_a_filter_covers_all_only_while_every_point_has_the_value(shard: edge.EdgeShard) -> None:
    mine = wire.common.Filter(must=[keyword("project", "a")])
    put(shard, "a", "a", "a")
    assert covers_all(shard, mine)
    put(shard, "a", "a", "a", "b")
    assert not covers_all(shard, mine)
    assert not covers_all(shard, wire.common.Filter(must=[keyword("project", "b")]))
    shard.update(edge.UpdateOperation.delete_points([4]))
    assert covers_all(shard, mine)
    shard.update(edge.UpdateOperation.set_payload([2], {"project": "b"}))
    assert not covers_all(shard, mine)


def test_what_cannot_be_told_at_once_covers_nothing(shard: edge.EdgeShard) -> None:
    put(shard, "a", "a")
    mine = keyword("project", "a")
    for condition in (
        wire.common.Filter(),
        wire.common.Filter(must=[mine, mine]),
        wire.common.Filter(should=[mine]),
        wire.common.Filter(must=[mine], must_not=[keyword("project", "b")]),
        wire.common.Filter(must=[mine], should=[mine]),
        wire.common.Filter(must=[keyword("other", "x")]),
    ):
        assert not covers_all(shard, condition)
