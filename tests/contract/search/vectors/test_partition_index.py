"""Partitions have collections of their own in one engine."""

from __future__ import annotations

from strata.shared.search.vectors import Collection
from strata.shared.search.vectors.partition import PartitionIndex
from strata.shared.search.vectors.qdrant import QdrantIndex

from .conftest import DIM, MODEL, document, vector

PROJECT = "project-1"


async def test_partitions_cannot_see_or_replace_collections_of_each_other(
    index: QdrantIndex, collection: Collection
) -> None:
    own = PartitionIndex(index, "p1")
    try:
        generation = await own.ensure(collection, MODEL, DIM)
        assert generation == collection.generation(MODEL)
        await own.upsert(collection, PROJECT, [document("of-p1")])
        await index.upsert(collection, PROJECT, [document("of-default")], generation=generation)

        hits = await own.query(collection, PROJECT, dense=vector(1.0), generation=generation)

        assert [hit.document_id for hit in hits] == ["of-p1"]
        await own.delete(collection, PROJECT, ["of-default"])
        assert await index.count(collection, PROJECT) == 1

        rebuilt = f"{generation}-2"
        await own.ensure(collection, MODEL, DIM, generation=rebuilt)
        await own.switch(collection, rebuilt)
        await own.drop(collection, generation)

        assert await own.generations(collection) == [rebuilt]
        assert await own.serving(collection) == rebuilt
        assert await own.count(collection, PROJECT) == 0
        assert await index.generations(collection) == [generation]
        assert await index.count(collection, PROJECT) == 1
    finally:
        for name in await own.generations(collection):
            await index._client.delete_collection(f"partition-p1-{name}")
