"""Stores of archival, a vector engine and search indexes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

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


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(open_folder_of_module: Path) -> AsyncIterator[EmbeddedVectors]:
    """A vector engine for the module: its tests drop all collections."""
    async with _started(open_folder_of_module) as engine:
        yield engine


@pytest.fixture
async def mortal_engine(open_folder: Path) -> AsyncIterator[EmbeddedVectors]:
    """A vector engine for one test, which kills it; it starts again."""
    async with _started(open_folder) as engine:
        yield engine


@pytest.fixture
async def finder(
    stores: Stores, embedder: Embedder, engine: EmbeddedVectors, request: pytest.FixtureRequest
) -> AsyncIterator[Finder]:
    """Stores and a search index; the indirect parameter is the relevance floor."""
    floor = getattr(request, "param", FLOOR)
    async with _opened(stores, embedder, engine, floor) as finder:
        yield finder


@pytest.fixture
async def mortal_finder(
    stores: Stores, embedder: Embedder, mortal_engine: EmbeddedVectors
) -> AsyncIterator[Finder]:
    """Stores and a search index in the vector engine that the test kills."""
    async with _opened(stores, embedder, mortal_engine, FLOOR) as finder:
        yield finder


@asynccontextmanager
async def _started(folder: Path) -> AsyncIterator[EmbeddedVectors]:
    engine = EmbeddedVectors(folder / "vectors")
    await engine.start()
    yield engine
    await engine.stop()


@asynccontextmanager
async def _opened(
    stores: Stores, embedder: Embedder, engine: EmbeddedVectors, floor: float
) -> AsyncIterator[Finder]:
    client = connect(engine.url, engine.api_key)
    for name in await client.collection_names():
        await client.delete_collection(name)
    vectors = QdrantIndex(client, QdrantConfig(fusion=FusionConfig(floor=floor)))
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
