"""A client of the embedded vector engine, and points for tests."""

from __future__ import annotations

from uuid import UUID

from qdrant_client import AsyncQdrantClient, models

from strata.standalone.vectors import EmbeddedVectors

STEM = "points__model__v1"


def connect(vectors: EmbeddedVectors, key: str | None = None) -> AsyncQdrantClient:
    return AsyncQdrantClient(
        host=vectors.host,
        grpc_port=vectors.port,
        prefer_grpc=True,
        https=False,
        headers={"api-key": vectors.api_key if key is None else key},
        check_compatibility=False,
        pool_size=1,
    )


async def make(client: AsyncQdrantClient, name: str = STEM) -> None:
    await client.create_collection(
        name,
        vectors_config={"dense": models.VectorParams(size=4, distance=models.Distance.COSINE)},
        sparse_vectors_config={"bm25": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )
    tenant = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
    await client.create_payload_index(name, "project_id", field_schema=tenant)
    for field, kind in (("tags", "keyword"), ("create_time", "datetime"), ("size", "integer")):
        await client.create_payload_index(name, field, field_schema=models.PayloadSchemaType(kind))


def point(number: int) -> models.PointStruct:
    return models.PointStruct(
        id=str(UUID(int=number)),
        vector={
            "dense": [1.0, number / 10, 0.0, 0.0],
            "bm25": models.SparseVector(indices=[0, number + 1], values=[0.5, 1.0]),
        },
        payload={
            "project_id": f"project-{number % 2}",
            "tags": ["all", f"tag-{number}"],
            "create_time": f"2024-01-{number + 1:02}T00:00:00Z",
            "size": number,
            "nested": {"list": [1, 2.5, None, True, "é"], "empty": {}},
        },
    )


def numbers(hits: object) -> list[int]:
    return [UUID(str(item.id)).int for item in hits]  # type: ignore[attr-defined]


def where(*must: models.Condition, **kinds: list[models.Condition]) -> models.Filter:
    return models.Filter(must=list(must), **kinds)


def field(key: str, **parts: object) -> models.FieldCondition:
    return models.FieldCondition(key=key, **parts)


def create_alias(alias: str, collection: str) -> models.CreateAliasOperation:
    named = models.CreateAlias(collection_name=collection, alias_name=alias)
    return models.CreateAliasOperation(create_alias=named)
