"""The embedding model of the stores' tests, loaded once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from strata.shared.search.embedding import CachingEmbedder, Embedder
from strata.shared.search.embedding.minilm import MiniLmEmbedder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def embedder() -> AsyncIterator[Embedder]:
    """The real embedding model, which remembers what it has embedded."""
    model = await MiniLmEmbedder.load()
    yield CachingEmbedder(model)
    await model.close()
