"""The vector index: dense and sparse search with tenant-safe filters, fused on our side.

The engine's client stands in `qdrant` and the BM25 encoder in `sparse`, so that importing
this package loads neither.
"""

from strata.shared.vectors.fusion import FusionConfig, Hit
from strata.shared.vectors.index import (
    Collection,
    Document,
    FieldKind,
    IndexedChunk,
    Moment,
    Preference,
    SparseVector,
    VectorIndex,
    Where,
    at_once,
)

__all__ = [
    "Collection",
    "Document",
    "FieldKind",
    "FusionConfig",
    "Hit",
    "IndexedChunk",
    "Moment",
    "Preference",
    "SparseVector",
    "VectorIndex",
    "Where",
    "at_once",
]
