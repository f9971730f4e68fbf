"""Embedding models: one interface, local models and OpenAI-compatible endpoints.

The implementations are in separate modules (`multilingual`, `minilm`, `openai_compatible`), so that
importing this package loads no inference engine and no SDK.
"""

from strata.shared.search.embedding.base import Embedder, Kind
from strata.shared.search.embedding.cache import CachingEmbedder
from strata.shared.search.embedding.chunking import EmbeddedChunk, chunk_text, embed_chunked
from strata.shared.search.embedding.models import EmbeddingModels, ModelInfo

__all__ = [
    "CachingEmbedder",
    "EmbeddedChunk",
    "Embedder",
    "EmbeddingModels",
    "Kind",
    "ModelInfo",
    "chunk_text",
    "embed_chunked",
]
