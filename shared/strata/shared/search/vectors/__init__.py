"""The vector index: dense and sparse search with filters by tenant, fused by Strata.

`qdrant` has the index on Qdrant, `client` its calls, and `sparse` the BM25 encoder; importing this
package loads none of them.
"""

from strata.shared.search.fusion import FusionConfig, Hit
from strata.shared.search.vectors.index import (
    Collection,
    Document,
    FieldKind,
    IndexedChunk,
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
    "Document",
    "FieldKind",
    "FusionConfig",
    "Hit",
    "IndexedChunk",
    "NeighbourFields",
    "Preference",
    "SparseVector",
    "StartGate",
    "VectorIndex",
    "Where",
    "no_gate",
]
