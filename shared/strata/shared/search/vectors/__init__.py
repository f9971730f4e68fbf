"""The vector index: dense and sparse search with filters by tenant, fused by Strata.

The engine's client is in `qdrant` and the BM25 encoder in `sparse`, so that importing
this package loads neither.
"""

from strata.shared.search.fusion import FusionConfig, Hit
from strata.shared.search.vectors.index import (
    Collection,
    Document,
    FieldKind,
    IndexedChunk,
    Preference,
    SparseVector,
    StartGate,
    VectorIndex,
    Where,
    no_gate,
)

__all__ = [
    "Collection",
    "Document",
    "FieldKind",
    "FusionConfig",
    "Hit",
    "IndexedChunk",
    "Preference",
    "SparseVector",
    "StartGate",
    "VectorIndex",
    "Where",
    "no_gate",
]
