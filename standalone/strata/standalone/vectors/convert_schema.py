"""Converts collections and payload indexes between Qdrant's messages and the engine's objects."""

from __future__ import annotations

from typing import Any, Literal

import qdrant_edge as edge

from strata.shared.search import qdrant_wire as wire
from strata.standalone.vectors.errors import BadRequestError, UnsupportedError

# A shard has one segment, so there is nothing to search in parallel. With more threads, every
# search would be handed to another thread and back, which takes 10% longer.
_SEARCH_THREADS = 1

_DISTANCES = {
    wire.collections.Distance.Cosine: edge.Distance.Cosine,
    wire.collections.Distance.Euclid: edge.Distance.Euclid,
    wire.collections.Distance.Dot: edge.Distance.Dot,
    wire.collections.Distance.Manhattan: edge.Distance.Manhattan,
}
_DATATYPES = {
    wire.collections.Datatype.Float32: edge.VectorStorageDatatype.Float32,
    wire.collections.Datatype.Float16: edge.VectorStorageDatatype.Float16,
    wire.collections.Datatype.Uint8: edge.VectorStorageDatatype.Uint8,
}
_FIELD_TYPES = {
    wire.points.FieldType.FieldTypeKeyword: edge.PayloadSchemaType.Keyword,
    wire.points.FieldType.FieldTypeInteger: edge.PayloadSchemaType.Integer,
    wire.points.FieldType.FieldTypeFloat: edge.PayloadSchemaType.Float,
    wire.points.FieldType.FieldTypeText: edge.PayloadSchemaType.Text,
    wire.points.FieldType.FieldTypeBool: edge.PayloadSchemaType.Bool,
    wire.points.FieldType.FieldTypeDatetime: edge.PayloadSchemaType.Datetime,
    wire.points.FieldType.FieldTypeUuid: edge.PayloadSchemaType.Uuid,
}
# The engine has no graph: every search compares with each vector that passes the filter. With
# four bits per component that takes a quarter of the time. Callers do not see the quantization,
# because results are ordered by the full vectors (see `convert_queries`).
_QUANTIZED = edge.TurboQuantQuantizationConfig(always_ram=True, bits=edge.TurboQuantBitSize.Bits4)
_BY_DIRECTION = {wire.collections.Distance.Cosine, wire.collections.Distance.Dot}
# name of the parameters in the message -> (the engine's class, the parameters taken over)
_INDEX_PARAMS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "keyword_index_params": (edge.KeywordIndexParams, ("is_tenant", "enable_hnsw")),
    "uuid_index_params": (edge.UuidIndexParams, ("is_tenant", "enable_hnsw")),
    "integer_index_params": (
        edge.IntegerIndexParams,
        ("lookup", "range", "is_principal", "enable_hnsw"),
    ),
    "float_index_params": (edge.FloatIndexParams, ("is_principal", "enable_hnsw")),
    "datetime_index_params": (edge.DatetimeIndexParams, ("is_principal", "enable_hnsw")),
    "bool_index_params": (edge.BoolIndexParams, ("enable_hnsw",)),
    "text_index_params": (
        edge.TextIndexParams,
        ("lowercase", "min_token_len", "max_token_len", "phrase_matching", "ascii_folding"),
    ),
}
_TOKENIZERS = {
    wire.collections.TokenizerType.Prefix: edge.TokenizerType.Prefix,
    wire.collections.TokenizerType.Whitespace: edge.TokenizerType.Whitespace,
    wire.collections.TokenizerType.Word: edge.TokenizerType.Word,
    wire.collections.TokenizerType.Multilingual: edge.TokenizerType.Multilingual,
}
# Tuning of storage and of the HNSW graph is ignored, because there are only plain scans (see the
# decision record). These parameters would change the stored data or access to it and are refused.
_REFUSED: tuple[Literal["quantization_config", "strict_mode_config", "sharding_method"], ...] = (
    "quantization_config",
    "strict_mode_config",
    "sharding_method",
)


def shard_config(message: wire.collections.CreateCollection) -> edge.EdgeConfig:
    """Returns the configuration of a collection's shard.

    Raises:
        UnsupportedError: The request asks for quantization, strict mode or custom sharding.
        BadRequestError: There is no vector, or one without size or distance.
    """
    for feature in _REFUSED:
        if message.HasField(feature):
            raise UnsupportedError(f"{feature} of a collection")
    dense = _dense(message)
    sparse = {
        name: edge.EdgeSparseVectorParams(
            modifier=edge.Modifier.Idf if params.modifier == wire.collections.Modifier.Idf else None
        )
        for name, params in message.sparse_vectors_config.map.items()
    }
    if not dense and not sparse:
        raise BadRequestError("a collection needs at least one vector")
    return edge.EdgeConfig(
        vectors=dense or None, sparse_vectors=sparse or None, max_search_threads=_SEARCH_THREADS
    )


def _dense(message: wire.collections.CreateCollection) -> dict[str, edge.EdgeVectorParams]:
    config = message.vectors_config
    match config.WhichOneof("config"):
        case "params":
            return {"": _vector_params("", config.params)}
        case "params_map":
            named_params = config.params_map.map.items()
            return {name: _vector_params(name, params) for name, params in named_params}
        case _:
            return {}


def _vector_params(name: str, params: wire.collections.VectorParams) -> edge.EdgeVectorParams:
    if params.HasField("quantization_config"):
        raise UnsupportedError("quantization_config of a vector")
    if params.distance not in _DISTANCES or params.size == 0:
        raise BadRequestError(f"vector {name!r} needs a size and a distance")
    multi = None
    if params.HasField("multivector_config"):
        multi = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    return edge.EdgeVectorParams(
        size=params.size,
        distance=_DISTANCES[params.distance],
        multivector_config=multi,
        datatype=_DATATYPES.get(params.datatype) if params.HasField("datatype") else None,
        quantization_config=_QUANTIZED if _is_quantized(params) else None,
    )


def _is_quantized(params: wire.collections.VectorParams) -> bool:
    plain = params.datatype in {
        wire.collections.Datatype.Default,
        wire.collections.Datatype.Float32,
    }
    return plain and params.distance in _BY_DIRECTION and not params.HasField("multivector_config")


def field_index(message: wire.points.CreateFieldIndexCollection) -> Any:
    """Returns the schema of a payload index: its parameters if there are any, else its type.

    Raises:
        UnsupportedError: A geo index.
    """
    if message.HasField("field_index_params"):
        kind = message.field_index_params.WhichOneof("index_params")
        if kind is not None and kind in _INDEX_PARAMS:
            return _index_params(kind, getattr(message.field_index_params, kind))
        if kind is not None:
            raise UnsupportedError(f"a payload index with {kind}")
    if message.field_type not in _FIELD_TYPES:
        name = wire.points.FieldType.Name(message.field_type)
        raise UnsupportedError(f"a payload index of {name}")
    return _FIELD_TYPES[message.field_type]


def _index_params(kind: str, params: Any) -> Any:
    make, names = _INDEX_PARAMS[kind]
    options = {name: getattr(params, name) for name in names if params.HasField(name)}
    if kind == "keyword_index_params" and params.HasField("prefix"):
        options["prefix"] = True
    if kind == "text_index_params":
        if params.HasField("stopwords") or params.HasField("stemmer"):
            raise UnsupportedError("stopwords and stemmers of a text index")
        if params.tokenizer in _TOKENIZERS:
            options["tokenizer"] = _TOKENIZERS[params.tokenizer]
    return make(**options)


def collection_info(
    created: wire.collections.CreateCollection, info: edge.ShardInfo
) -> wire.collections.CollectionInfo:
    """Returns the answer of `GetCollectionInfo`: the original configuration and current counts."""
    pb = wire.collections
    params = pb.CollectionParams(
        shard_number=1,
        on_disk_payload=True,
        replication_factor=1,
        write_consistency_factor=1,
        vectors_config=created.vectors_config if created.HasField("vectors_config") else None,
        sparse_vectors_config=(
            created.sparse_vectors_config if created.HasField("sparse_vectors_config") else None
        ),
    )
    hnsw = pb.HnswConfigDiff(m=16, ef_construct=100, full_scan_threshold=10_000)
    hnsw.MergeFrom(created.hnsw_config)
    optimizer = pb.OptimizersConfigDiff(
        deleted_threshold=0.2,
        vacuum_min_vector_number=1000,
        default_segment_number=0,
        flush_interval_sec=5,
    )
    optimizer.MergeFrom(created.optimizers_config)
    return pb.CollectionInfo(
        status=pb.CollectionStatus.Green,
        optimizer_status=pb.OptimizerStatus(ok=True),
        segments_count=info.segments_count,
        points_count=info.points_count,
        indexed_vectors_count=info.indexed_vectors_count,
        config=pb.CollectionConfig(
            params=params,
            hnsw_config=hnsw,
            optimizer_config=optimizer,
            wal_config=pb.WalConfigDiff(wal_capacity_mb=32, wal_segments_ahead=0),
            metadata=created.metadata,
        ),
        payload_schema={
            name: pb.PayloadSchemaInfo(
                data_type=pb.PayloadSchemaType.Value(_type_name(index)), points=index.points
            )
            for name, index in info.payload_schema.items()
        },
    )


def _type_name(index: edge.PayloadIndexInfo) -> str:
    # Both sides name the types alike; the engine's enum has no `name`.
    return str(index.data_type).rpartition(".")[2]
