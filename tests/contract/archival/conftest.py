"""Stores of archival, a vector engine and search indexes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from archival_stores import CHUNK_BATCH, NOW, Finder, Stores
from callers import new_project
from strata.archival.migrations import MIGRATIONS
from strata.archival.search.backlogs import ChunkBacklog, PassageBacklog
from strata.archival.search.chunk_search import FileChunkSearch
from strata.archival.search.index import FILE_CHUNKS, PASSAGES, ChunkIndex, PassageIndex
from strata.archival.search.passage_search import PassageSearch
from strata.shared.clock import ManualClock
from strata.shared.search.embedding import Embedder
from strata.shared.search.fusion import FLOOR, FusionConfig
from strata.shared.search.indexing.indexer import Backlog, Indexer
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantConfig, QdrantIndex
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.standalone.vectors import EmbeddedVectors


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    with new_project() as project_id:
        yield project_id


@pytest.fixture
async def urls(databases: Any) -> Any:
    return await databases.of(MIGRATIONS)


@pytest.fixture
async def stores(urls: Any) -> AsyncIterator[Stores]:
    opened = Stores.opened(urls)
    yield opened
    await opened.close()


@pytest.fixture
async def engine(open_folder: Any) -> AsyncIterator[EmbeddedVectors]:
    """A vector engine for this test alone."""
    engine = EmbeddedVectors(open_folder / "vectors")
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def finder(
    stores: Stores, embedder: Embedder, engine: EmbeddedVectors, request: pytest.FixtureRequest
) -> AsyncIterator[Finder]:
    """Stores and a search index; the indirect parameter is the relevance floor."""
    fusion = FusionConfig(floor=getattr(request, "param", FLOOR))
    vectors = QdrantIndex(connect(engine.url, engine.api_key), QdrantConfig(fusion=fusion))
    index = PassageIndex(vectors, embedder, SparseEncoder())
    chunk_index = ChunkIndex(vectors, embedder, SparseEncoder())
    backlogs: list[Backlog] = [
        PassageBacklog(stores.pending, index, batch=64),
        ChunkBacklog(stores.queue, chunk_index, batch=CHUNK_BATCH),
    ]
    for backlog in backlogs:
        await backlog.ensure()
    assert await vectors.serving(PASSAGES)
    assert await vectors.serving(FILE_CHUNKS)
    finder = Finder(
        stores,
        index,
        chunk_index,
        Indexer(backlogs, poll=0.2),
        PassageSearch(stores.passages, index, ManualClock(NOW)),
        FileChunkSearch(stores.chunks, chunk_index),
    )
    yield finder
    await vectors.close()
