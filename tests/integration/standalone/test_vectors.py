"""The vector engine, through Qdrant's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import grpc
import psutil
import pytest
from qdrant_client import AsyncQdrantClient, models

from integration.standalone.vector_points import (
    STEM,
    connect,
    create_alias,
    field,
    make,
    numbers,
    point,
    where,
)
from strata.standalone.vectors import EmbeddedVectors


@pytest.fixture
async def client(vectors: EmbeddedVectors) -> AsyncIterator[AsyncQdrantClient]:
    client = connect(vectors)
    yield client
    for collection in (await client.get_collections()).collections:
        await client.delete_collection(collection.name)
    await client.close()


@pytest.fixture
async def points(client: AsyncQdrantClient) -> AsyncQdrantClient:
    """A collection of ten points of two projects, dense and sparse."""
    await make(client)
    await client.upsert(STEM, [point(number) for number in range(10)], wait=True)
    return client


async def ids(client: AsyncQdrantClient, condition: models.Filter) -> list[int]:
    records, _ = await client.scroll(STEM, scroll_filter=condition, limit=100)
    return sorted(numbers(records))


async def test_a_stored_point_is_returned_unchanged(points: AsyncQdrantClient) -> None:
    (retrieved,) = await points.retrieve(
        STEM, [str(UUID(int=3))], with_payload=True, with_vectors=True
    )

    assert retrieved.id == str(UUID(int=3))
    assert retrieved.payload == point(3).payload
    assert isinstance(retrieved.vector, dict)
    assert retrieved.vector["bm25"] == models.SparseVector(indices=[0, 4], values=[0.5, 1.0])
    dense = retrieved.vector["dense"]
    assert isinstance(dense, list)
    assert len(dense) == 4


async def test_payload_and_vectors_are_returned_on_request(points: AsyncQdrantClient) -> None:
    one = [str(UUID(int=3))]
    (bare,) = await points.retrieve(STEM, one, with_payload=False)
    (some,) = await points.retrieve(STEM, one, with_payload=["size"], with_vectors=["dense"])
    (rest,) = await points.retrieve(
        STEM, one, with_payload=models.PayloadSelectorExclude(exclude=["nested", "tags"])
    )

    assert (bare.payload, bare.vector) == ({}, None)
    assert some.payload == {"size": 3}
    assert isinstance(some.vector, dict)
    assert list(some.vector) == ["dense"]
    assert set(rest.payload or {}) == {"project_id", "create_time", "size"}
    assert await points.retrieve(STEM, [str(UUID(int=99))]) == []


async def test_numbers_can_be_ids(client: AsyncQdrantClient) -> None:
    await make(client)
    await client.upsert(STEM, [models.PointStruct(id=7, vector={"dense": [1, 0, 0, 0]})])

    assert [point.id for point in await client.retrieve(STEM, [7])] == [7]


async def test_dense_search_ranks_matching_points_by_similarity(points: AsyncQdrantClient) -> None:
    response = await points.query_points(
        STEM,
        query=[1.0, 0.0, 0.0, 0.0],
        using="dense",
        query_filter=where(field("project_id", match=models.MatchValue(value="project-1"))),
        limit=3,
        with_payload=["size"],
    )

    assert numbers(response.points) == [1, 3, 5]
    assert [hit.payload for hit in response.points] == [{"size": size} for size in (1, 3, 5)]
    assert response.points[0].score == pytest.approx(1 / (1 + 0.01) ** 0.5)


async def test_sparse_search_gives_rare_terms_more_weight(points: AsyncQdrantClient) -> None:
    query = models.SparseVector(indices=[0, 5], values=[1.0, 1.0])
    response = await points.query_points(STEM, query=query, using="bm25", limit=10)

    assert numbers(response.points)[0] == 4
    assert response.points[0].score > 5 * response.points[1].score


async def test_a_batch_returns_the_answers_in_the_order_of_its_queries(
    points: AsyncQdrantClient,
) -> None:
    dense = models.QueryRequest(query=[1.0, 0.0, 0.0, 0.0], using="dense", limit=1)
    sparse = models.QueryRequest(
        query=models.SparseVector(indices=[9], values=[1.0]), using="bm25", limit=2
    )
    responses = await points.query_batch_points(STEM, [dense, sparse, dense])

    assert [numbers(answer.points) for answer in responses] == [[0], [8], [0]]
    assert await points.query_batch_points(STEM, []) == []


async def test_queries_can_fuse_rankings_and_have_offset_and_limit(
    points: AsyncQdrantClient,
) -> None:
    arms = [
        models.Prefetch(query=[1.0, 0.0, 0.0, 0.0], using="dense", limit=5),
        models.Prefetch(
            query=models.SparseVector(indices=[9], values=[1.0]), using="bm25", limit=5
        ),
    ]
    for fusion in (
        models.FusionQuery(fusion=models.Fusion.RRF),
        models.FusionQuery(fusion=models.Fusion.DBSF),
        models.RrfQuery(rrf=models.Rrf(k=60)),
    ):
        response = await points.query_points(STEM, prefetch=arms, query=fusion, limit=10)
        assert set(numbers(response.points)) == {0, 1, 2, 3, 4, 8}
    vector = [1.0, 0.0, 0.0, 0.0]
    paged = await points.query_points(STEM, query=vector, using="dense", limit=2, offset=4)
    assert numbers(paged.points) == [4, 5]
    cut = await points.query_points(STEM, query=vector, using="dense", score_threshold=0.99)
    assert numbers(cut.points) == [0, 1]
    newest = models.OrderByQuery(
        order_by=models.OrderBy(key="create_time", direction=models.Direction.DESC)
    )
    ordered = await points.query_points(STEM, query=newest, limit=2)
    assert numbers(ordered.points) == [9, 8]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (where(field("tags", match=models.MatchValue(value="tag-3"))), [3]),
        (where(field("tags", match=models.MatchAny(any=["tag-3", "tag-4"]))), [3, 4]),
        (
            where(
                field("tags", match=models.MatchValue(value="all")),
                field("tags", match=models.MatchValue(value="tag-5")),
            ),
            [5],
        ),
        (where(field("size", match=models.MatchValue(value=6))), [6]),
        (where(field("size", match=models.MatchExcept(**{"except": [0, 1, 2]}))), [*range(3, 10)]),
        (where(field("size", range=models.Range(gte=8))), [8, 9]),
        (where(field("size", range=models.Range(gt=1, lt=3))), [2]),
        (
            where(
                field(
                    "create_time",
                    range=models.DatetimeRange(
                        gte="2024-01-02T00:00:00Z", lt="2024-01-04T00:00:00+00:00"
                    ),
                )
            ),
            [1, 2],
        ),
        (models.Filter(must_not=[field("size", range=models.Range(gte=1))]), [0]),
        (
            models.Filter(
                should=[
                    field("size", match=models.MatchValue(value=1)),
                    field("size", match=models.MatchValue(value=2)),
                ]
            ),
            [1, 2],
        ),
        (
            models.Filter(
                min_should=models.MinShould(
                    conditions=[
                        field("size", range=models.Range(gte=5)),
                        field("project_id", match=models.MatchValue(value="project-0")),
                    ],
                    min_count=2,
                )
            ),
            [6, 8],
        ),
        (where(models.HasIdCondition(has_id=[str(UUID(int=2)), str(UUID(int=77))])), [2]),
        (where(models.IsEmptyCondition(is_empty=models.PayloadField(key="size"))), []),
        (where(models.HasVectorCondition(has_vector="bm25")), [*range(10)]),
        (
            where(models.Filter(must=[field("size", range=models.Range(lte=0))])),
            [0],
        ),
    ],
)
async def test_filters_select_the_matching_points(
    points: AsyncQdrantClient, condition: models.Filter, expected: list[int]
) -> None:
    assert await ids(points, condition) == expected
    assert (await points.count(STEM, count_filter=condition, exact=True)).count == len(expected)


async def test_scrolling_returns_every_point_once(points: AsyncQdrantClient) -> None:
    seen: list[int] = []
    offset = None
    while True:
        records, offset = await points.scroll(STEM, limit=3, offset=offset)
        seen += numbers(records)
        if offset is None:
            break

    assert seen == [*range(10)]


async def test_points_can_be_scrolled_in_an_order(points: AsyncQdrantClient) -> None:
    order = models.OrderBy(
        key="create_time",
        direction=models.Direction.DESC,
        start_from="2024-01-05T00:00:00Z",
    )
    records, _ = await points.scroll(STEM, limit=2, order_by=order)
    assert numbers(records) == [4, 3]


async def test_points_are_replaced_changed_and_deleted(points: AsyncQdrantClient) -> None:
    changed = point(1)
    changed.payload = {"project_id": "project-1"}
    await points.upsert(STEM, [changed])
    await points.delete(STEM, [str(UUID(int=6)), str(UUID(int=66))])
    gone = where(field("size", range=models.Range(gte=7, lte=8)))
    await points.delete(STEM, models.FilterSelector(filter=gone))

    records, _ = await points.scroll(STEM, limit=100)
    payloads = {UUID(str(record.id)).int: record.payload or {} for record in records}
    assert sorted(payloads) == [0, 1, 2, 3, 4, 5, 9]
    assert payloads[1] == {"project_id": "project-1"}


async def test_collections_are_listed_and_described(points: AsyncQdrantClient) -> None:
    listed = await points.get_collections()
    described = await points.get_collection(STEM)

    assert [collection.name for collection in listed.collections] == [STEM]
    assert described.points_count == 10
    assert described.status == models.CollectionStatus.GREEN
    assert isinstance(described.config.params.vectors, dict)
    assert described.config.params.vectors["dense"].size == 4
    assert described.config.params.vectors["dense"].distance == models.Distance.COSINE
    sparse = (described.config.params.sparse_vectors or {})["bm25"]
    assert sparse.modifier == models.Modifier.IDF
    kinds = {name: index.data_type.value for name, index in described.payload_schema.items()}
    assert kinds == {
        "project_id": "keyword",
        "tags": "keyword",
        "create_time": "datetime",
        "size": "integer",
    }


def delete_alias(alias: str) -> models.DeleteAliasOperation:
    return models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias))


async def aliases(client: AsyncQdrantClient) -> dict[str, str]:
    return {
        alias.alias_name: alias.collection_name for alias in (await client.get_aliases()).aliases
    }


async def test_an_alias_can_be_used_in_place_of_its_collection(points: AsyncQdrantClient) -> None:
    await points.update_collection_aliases([create_alias("points", STEM)])

    assert await points.collection_exists("points")
    assert (await points.count("points")).count == 10
    assert (await points.get_collection("points")).points_count == 10
    await points.upsert("points", [point(10)])
    assert (await points.count(STEM)).count == 11
    response = await points.get_collection_aliases(STEM)
    assert [alias.alias_name for alias in response.aliases] == ["points"]


async def test_an_alias_moves_to_another_collection_at_once(points: AsyncQdrantClient) -> None:
    await make(points, "points__model__v2")
    await points.update_collection_aliases([create_alias("points", STEM)])
    await points.update_collection_aliases(
        [delete_alias("points"), create_alias("points", "points__model__v2")]
    )

    assert await aliases(points) == {"points": "points__model__v2"}
    assert (await points.count("points")).count == 0


async def test_alias_changes_are_all_or_nothing(points: AsyncQdrantClient) -> None:
    await points.update_collection_aliases([create_alias("points", STEM)])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await points.update_collection_aliases(
            [delete_alias("points"), create_alias("points", "nowhere")]
        )

    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert await aliases(points) == {"points": STEM}


async def test_aliases_are_renamed_and_deleted_with_their_collection(
    points: AsyncQdrantClient,
) -> None:
    await points.update_collection_aliases([create_alias("old", STEM)])
    rename = models.RenameAlias(old_alias_name="old", new_alias_name="new")
    await points.update_collection_aliases([models.RenameAliasOperation(rename_alias=rename)])
    assert await aliases(points) == {"new": STEM}

    await points.delete_collection(STEM)
    assert await aliases(points) == {}
    assert not await points.collection_exists("new")


async def test_errors_have_the_status_codes_of_qdrant(points: AsyncQdrantClient) -> None:
    dense = {"dense": models.VectorParams(size=4, distance=models.Distance.COSINE)}
    repeated = models.SparseVector(indices=[1, 1], values=[1.0, 2.0])
    cases = [
        (points.count("nowhere"), grpc.StatusCode.NOT_FOUND),
        (points.create_collection(STEM, vectors_config=dense), grpc.StatusCode.ALREADY_EXISTS),
        (
            points.create_collection("../escape", vectors_config=dense),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            points.query_points(STEM, query=[1.0], using="dense"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            points.query_points(STEM, query=[1.0, 0, 0, 0], using="unknown"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (points.retrieve(STEM, ["no-uuid"]), grpc.StatusCode.INVALID_ARGUMENT),
        (
            points.query_points(STEM, query=repeated, using="bm25"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            points.upsert(STEM, [models.PointStruct(id=1, vector={"dense": [1.0]})]),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            points.query_points_groups(
                STEM, group_by="size", query=[1.0, 0.0, 0.0, 0.0], using="dense"
            ),
            grpc.StatusCode.UNIMPLEMENTED,
        ),
        (points.query_points(STEM, query=1, using="dense"), grpc.StatusCode.UNIMPLEMENTED),
        (points.create_shard_key(STEM, "a"), grpc.StatusCode.UNIMPLEMENTED),
    ]
    for call, status in cases:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() == status, refused.value.details()
        assert "Traceback" not in (refused.value.details() or "")
    assert (await points.count(STEM)).count == 10


async def test_the_error_of_an_unsupported_call_names_it(points: AsyncQdrantClient) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="QueryGroups"):
        await points.query_points_groups(
            STEM, group_by="size", query=[1.0, 0.0, 0.0, 0.0], using="dense"
        )


@pytest.mark.parametrize("key", ["", "guess", "é"])
async def test_calls_without_the_key_are_refused(vectors: EmbeddedVectors, key: str) -> None:
    stranger = connect(vectors, key.encode("unicode_escape").decode())
    try:
        for call in (stranger.info, stranger.get_collections):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call()
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    finally:
        await stranger.close()


async def test_the_key_is_in_no_command_line_and_no_file_readable_by_others(
    vectors: EmbeddedVectors,
) -> None:
    assert vectors.api_key not in " ".join(psutil.Process(vectors.pid).cmdline())
    assert vectors.api_key not in str(psutil.Process(vectors.pid).environ())
    assert (vectors.folder / "api_key").stat().st_mode & 0o077 == 0
    assert vectors.folder.stat().st_mode & 0o077 == 0


async def test_health_is_answered_while_the_engine_works(points: AsyncQdrantClient) -> None:
    many = [
        models.PointStruct(id=number + 1000, vector={"dense": [1.0, number, 1.0, 0.0]})
        for number in range(5000)
    ]
    for _ in range(10):  # again where this process, not the engine, was too slow to ask twice
        answered = 0
        loading = asyncio.create_task(points.upsert(STEM, many))
        while not loading.done():
            await points.info()
            answered += not loading.done()
        await loading
        if answered > 1:
            break

    assert answered > 1
    assert (await points.count(STEM)).count == 5010
