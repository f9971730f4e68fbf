from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from archival_support import Finder, Stores, caller
from strata.archival.index import PASSAGES, PassageIndex
from strata.archival.indexer import Indexer
from strata.archival.migrations import MIGRATIONS
from strata.archival.search import PassageSearch
from strata.archival.store import PendingPassages, PostgresArchiveStore, PostgresPassageStore
from strata.embedded.vectors import EmbeddedVectors
from strata.shared import context
from strata.shared.db import Database
from strata.shared.embedding import CachingEmbedder, Embedder
from strata.shared.embedding.minilm import MiniLmEmbedder
from strata.shared.ids import new_id
from strata.shared.vectors.qdrant import QdrantIndex, connect
from strata.shared.vectors.sparse import SparseEncoder


@pytest.fixture(autouse=True)
def project() -> Iterator[str]:
    project_id = new_id("project")
    with context.use(caller(project_id)):
        yield project_id


@pytest.fixture
async def stores(databases: Any) -> AsyncIterator[Stores]:
    urls = await databases.of(MIGRATIONS)
    database, worker = Database(urls.service_url), Database(urls.worker_url)
    yield Stores(
        PostgresArchiveStore(database),
        PostgresPassageStore(database),
        PendingPassages(database, worker),
        database,
    )
    await database.close()
    await worker.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def embedder() -> AsyncIterator[Embedder]:
    model = await MiniLmEmbedder.load()
    yield CachingEmbedder(model)
    await model.close()


@pytest.fixture
async def finder(
    stores: Stores, embedder: Embedder, open_folder: Any
) -> AsyncIterator[tuple[Finder, EmbeddedVectors]]:
    engine = EmbeddedVectors(open_folder / "vectors")
    await engine.start()
    vectors = QdrantIndex(connect(engine.url, engine.api_key))
    index = PassageIndex(vectors, embedder, SparseEncoder())
    indexer = Indexer(stores.pending, index, batch=64, poll=0.2)
    await index.ensure()
    assert await vectors.serving(PASSAGES)
    yield Finder(stores, index, indexer, PassageSearch(stores.passages, index)), engine
    await vectors.close()
    await engine.stop()
