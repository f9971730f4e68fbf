"""The vector index: dense and sparse search with filters by tenant, fused by Strata.

`qdrant` has the index on Qdrant, `client` its calls, and `sparse` the BM25 encoder; importing this
package loads none of them.
"""

from strata.shared.search.fusion import FusionConfig, Hit
from strata.shared.search.vectors.index import (
    Collection,
    FieldKind,
    IndexedChunk,
    IndexedDocument,
    NeighbourFields,
    Preference,
    SparseVector,
    StartGate,
    VectorIndex,
    Where,
    no_gate,
)

__all__ = [
    "Collection",
    "FieldKind",
    "FusionConfig",
    "Hit",
    "IndexedChunk",
    "IndexedDocument",
    "NeighbourFields",
    "Preference",
    "SparseVector",
    "StartGate",
    "VectorIndex",
    "Where",
    "no_gate",
]
