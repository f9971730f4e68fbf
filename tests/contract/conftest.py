"""The embedding model, loaded once, and a stack of resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from strata.shared.search.embedding import CachingEmbedder, Embedder
from strata.shared.search.embedding.multilingual import MultilingualEmbedder


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """An exit stack that is closed after the test."""
    async with AsyncExitStack() as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def embedder() -> AsyncIterator[Embedder]:
    """The real embedding model, with a cache of embedded texts."""
    model = await MultilingualEmbedder.load()
    yield CachingEmbedder(model)
    await model.close()
