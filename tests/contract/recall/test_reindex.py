"""The index of messages is rebuilt with another model during writes and searches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from callers import as_project
from other_models import WORDS, endpoints, serve
from recall_conversations import Writer
from strata.api.common.v1 import search_pb2 as pb
from strata.protocol.errors import FailedPreconditionError
from strata.recall.domain.search import SearchQuery
from strata.recall.search.index import MESSAGES
from strata.recall.search.indexes import Indexes, open_indexes, wire
from strata.recall.search.message_search import MessageSearch
from strata.recall.settings import RecallSettings
from strata.recall.store import PostgresSearchStore
from strata.shared import context
from strata.shared.clock import SystemClock
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole
from strata.shared.search.engines import open_models
from strata.shared.search.reindexing.state import ReindexConfig
from strata.shared.search.vectors import Where
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry
from strata.standalone.vectors import EmbeddedVectors


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(session_folder: Path) -> AsyncIterator[EmbeddedVectors]:
    """An engine for these tests alone: they drop its collections."""
    made = EmbeddedVectors(session_folder / "vectors-of-messages")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def parts(
    database: Database, worker: Database, engine: EmbeddedVectors
) -> AsyncIterator[tuple[Indexes, Database, QdrantIndex]]:
    endpoint = await serve()
    vectors = QdrantIndex(connect(engine.url, engine.api_key))
    settings = RecallSettings(embedding_models=endpoints(endpoint.base_url))
    reindex = ReindexConfig(settings.reindex_grace_s, batch=2)
    async with AsyncExitStack() as stack:
        models = await open_models(settings, SharedResources(), stack)
        indexes = wire(settings, models, vectors, database, worker, Telemetry(), reindex)
        for backlog in indexes.indexers[0]._backlogs:
            await backlog.ensure()
        yield indexes, database, vectors
    await vectors.close()
    await endpoint.stop()


async def test_the_message_index_changes_its_model_during_writes_and_searches(
    parts: tuple[Indexes, Database, QdrantIndex],
) -> None:
    indexes, database, vectors = parts
    assert indexes.messages is not None
    indexer, reindexer = indexes.indexers
    search = MessageSearch(PostgresSearchStore(database), indexes.messages, SystemClock())

    async def work(one: Any) -> None:
        while await one.index_pending():
            pass

    async def first(writer: Writer, words: str) -> tuple[str, bool]:
        hit = (await search.search(SearchQuery(writer.agent, words, 3))).hits[0]
        return hit.item.parts[0]["text"], hit.vector_rank is not None

    project = new_id("project")
    with context.use(as_project(project)):
        stays, goes = Writer(database, new_id("agent")), Writer(database, new_id("agent"))
        for writer in (stays, goes):
            await writer.open()
            for number, animal in enumerate(("otter", "heron", "badger", "lynx", "vole")):
                await writer.say(f"The {animal} was seen at pond {number} today.")
        await stays.say("Tools answer in the form of machines.", MessageRole.TOOL)
        await work(indexer)
        begun = await indexes.admin.start("messages", WORDS, "")
        assert begun.total == 10
        for _ in range(3):
            assert await reindexer.index_pending()
        # During the rebuild a message is stored, and an agent is deleted.
        await stays.say("A walrus sleeps on the ice.")
        await goes.windows.delete_agent(goes.agent)
        await work(indexer)
        await work(reindexer)
        state = await indexes.admin.state("messages")
        assert (state.reindex.phase, state.embedding_model) == (pb.REINDEX_PHASE_SWITCHED, WORDS)
        assert state.waiting == 0
        assert await first(stays, "walrus") == ("A walrus sleeps on the ice.", True)
        assert await first(stays, "badger pond") == ("The badger was seen at pond 2 today.", True)
        assert await vectors.count(MESSAGES, project, generation=state.generation) == 6
        other = Where(eq={"agent_id": goes.agent})
        assert await vectors.count(MESSAGES, project, other, generation=state.generation) == 0
        await indexes.admin.finish("messages")
        await work(reindexer)
        assert await vectors.generations(MESSAGES) == [state.generation]


async def test_a_copy_does_not_restore_a_deleted_agent(
    parts: tuple[Indexes, Database, QdrantIndex],
) -> None:
    indexes, database, vectors = parts
    indexer, _ = indexes.indexers
    project = new_id("project")
    with context.use(as_project(project)):
        writer = Writer(database, new_id("agent"))
        await writer.open()
        await writer.say("The otter was seen at the pond.")
        while await indexer.index_pending():
            pass
        await indexes.admin.start("messages", WORDS, "")
        whole, ledger = indexes.admin._indexes["messages"].rebuild, indexes.admin._ledger
        assert ledger is not None
        async with ledger.claim(["messages"], 0) as job:
            assert job is not None
            target = whole.place(job.target)
            batch = await whole.batch(job, 10)
            assert batch is not None
            assert len(batch.entries) == 1
            await writer.windows.delete_agent(writer.agent)
            while await indexer.index_pending():
                pass
            # Only now the batch arrives, with its earlier content.
            await target.put(batch.project_id, batch.entries, replace=True, into=[job.target])
            count = partial(vectors.count, MESSAGES, project, generation=job.target.generation)
            assert await count() == 1
            await whole.settle(job, batch)
            assert await count() == 0
        await indexes.admin.roll_back("messages")


async def test_without_message_indexing_the_index_state_is_a_failed_precondition() -> None:
    settings = RecallSettings(index_messages=False)
    unused: Any = None
    indexes = await open_indexes(settings, unused, AsyncExitStack(), unused, None)
    assert indexes.messages is None
    with pytest.raises(FailedPreconditionError):
        await indexes.admin.state("messages")
