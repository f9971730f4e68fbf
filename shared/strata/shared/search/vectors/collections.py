"""The engine's collections: their vectors, the indexes of their fields, and their aliases."""

from collections.abc import Iterator

from strata.shared.search.qdrant_wire import collections, points
from strata.shared.search.vectors.index import (
    CHUNK_FIELD,
    DOCUMENT_FIELD,
    PROJECT_FIELD,
    Collection,
    FieldKind,
)

DENSE = "dense"
SPARSE = "bm25"

_FIELD_TYPES = {
    FieldKind.KEYWORD: points.FieldType.FieldTypeKeyword,
    FieldKind.INTEGER: points.FieldType.FieldTypeInteger,
    FieldKind.DATETIME: points.FieldType.FieldTypeDatetime,
}


def creation_request(
    generation: str,
    dim: int,
    *,
    shard_number: int | None,
    replication_factor: int,
    write_consistency_factor: int,
) -> collections.CreateCollection:
    """Returns the request that creates a generation.

    Args:
        generation: Its name.
        dim: Components of the dense vectors.
        shard_number: Shards; None for the engine's default.
        replication_factor: Copies of each shard.
        write_consistency_factor: Copies that must confirm a write.
    """
    dense = collections.VectorParams(size=dim, distance=collections.Distance.Cosine)
    sparse = collections.SparseVectorParams(modifier=collections.Modifier.Idf)
    return collections.CreateCollection(
        collection_name=generation,
        vectors_config=collections.VectorsConfig(
            params_map=collections.VectorParamsMap(map={DENSE: dense})
        ),
        sparse_vectors_config=collections.SparseVectorConfig(map={SPARSE: sparse}),
        # One graph per project and no global one: every search is within one project.
        hnsw_config=collections.HnswConfigDiff(m=0, payload_m=16),
        shard_number=shard_number,
        replication_factor=replication_factor,
        write_consistency_factor=write_consistency_factor,
    )


def dense_dim(info: collections.CollectionInfo) -> int | None:
    """Returns the components of the dense vectors of a collection; None if it has none."""
    vectors = info.config.params.vectors_config.params_map.map
    return vectors[DENSE].size if DENSE in vectors else None


def index_requests(
    collection: Collection, generation: str, info: collections.CollectionInfo
) -> Iterator[points.CreateFieldIndexCollection]:
    """Yields a request for each field that is filtered on; without an index the engine scans.

    Args:
        collection: Has the fields.
        generation: The collection of the engine.
        info: Its state. There is no request for a field with an index of the right type: the
            collections are checked every half a minute, and each request is a write.
    """
    # The project's index lets the engine store each tenant's points together.
    tenant = collections.PayloadIndexParams(
        keyword_index_params=collections.KeywordIndexParams(is_tenant=True)
    )
    kinds = {
        PROJECT_FIELD: FieldKind.KEYWORD,
        DOCUMENT_FIELD: FieldKind.KEYWORD,
        CHUNK_FIELD: FieldKind.INTEGER,
        **collection.fields,
    }
    for name, kind in kinds.items():
        if name in info.payload_schema and _indexes(info.payload_schema[name], kind):
            continue
        yield points.CreateFieldIndexCollection(
            collection_name=generation,
            field_name=name,
            field_type=_FIELD_TYPES[kind],
            field_index_params=tenant if name == PROJECT_FIELD else None,
            wait=True,
        )


def _indexes(stored: collections.PayloadSchemaInfo, kind: FieldKind) -> bool:
    # Both enums name the types alike, but number them differently.
    type_name = points.FieldType.Name(_FIELD_TYPES[kind]).removeprefix("FieldType")
    return collections.PayloadSchemaType.Name(stored.data_type) == type_name


def alias_creation(alias: str, generation: str) -> collections.AliasOperations:
    """Returns the operation that makes an alias point to a generation."""
    create = collections.CreateAlias(collection_name=generation, alias_name=alias)
    return collections.AliasOperations(create_alias=create)


def alias_deletion(alias: str) -> collections.AliasOperations:
    """Returns the operation that deletes an alias."""
    return collections.AliasOperations(delete_alias=collections.DeleteAlias(alias_name=alias))
