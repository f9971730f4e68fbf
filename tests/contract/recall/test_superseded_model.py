"""An index of an earlier release gets the new default model by itself, once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
import pytest_asyncio

from callers import as_project
from recall_conversations import Writer
from strata.api.common.v1 import search_pb2 as pb
from strata.recall.search.indexes import Indexes, wire
from strata.recall.settings import RecallSettings
from strata.shared import context
from strata.shared.db import Database
from strata.shared.ids import new_id
from strata.shared.search.embedding.base import ENGLISH_MODEL, MULTILINGUAL_MODEL
from strata.shared.search.engines import open_models
from strata.shared.search.vectors.client import connect
from strata.shared.search.vectors.qdrant import QdrantIndex
from strata.shared.shared_resources import SharedResources
from strata.shared.telemetry import Telemetry
from strata.standalone.vectors import EmbeddedVectors

Provider: TypeAlias = Literal["multilingual", "minilm"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine(session_folder: Path) -> AsyncIterator[EmbeddedVectors]:
    made = EmbeddedVectors(session_folder / "vectors-of-superseded-models")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def started(
    database: Database, worker: Database, engine: EmbeddedVectors
) -> AsyncIterator[Callable[[Provider], Awaitable[Indexes]]]:
    """Opens the indexes as at a start with these settings."""
    vectors = QdrantIndex(connect(engine.url, engine.api_key))
    async with AsyncExitStack() as stack:

        async def start(provider: Provider) -> Indexes:
            settings = RecallSettings(embedding_provider=provider)
            models = await open_models(settings, SharedResources(), stack)
            indexes = wire(settings, models, vectors, database, worker, Telemetry())
            for indexer in indexes.indexers:
                for backlog in indexer._backlogs:
                    await backlog.ensure()
            return indexes

        yield start
    await vectors.close()


async def work(indexes: Indexes) -> None:
    for indexer in indexes.indexers:
        while await indexer.index_pending():
            pass


async def test_an_index_with_the_earlier_default_is_rebuilt_once(
    started: Callable[[Provider], Awaitable[Indexes]], database: Database
) -> None:
    before = await started("minilm")
    with context.use(as_project(new_id("project"))):
        writer = Writer(database, new_id("agent"))
        await writer.open()
        for animal in ("otter", "heron", "badger", "lynx", "vole"):
            await writer.say(f"The {animal} was seen at the pond today.")
    if (await before.admin.state("messages")).embedding_model != ENGLISH_MODEL:
        await before.admin.start("messages", ENGLISH_MODEL, "")
    await work(before)
    state = await before.admin.state("messages")
    assert (state.embedding_model, state.waiting) == (ENGLISH_MODEL, 0)
    if state.reindex.phase == pb.REINDEX_PHASE_SWITCHED:
        await before.admin.finish("messages")
        await work(before)

    # Settings that name the earlier model keep it.
    assert (await started("minilm")).messages is not None
    assert (await before.admin.state("messages")).embedding_model == ENGLISH_MODEL

    after = await started("multilingual")
    begun = (await after.admin.state("messages")).reindex
    assert (begun.old_model, begun.new_model) == (ENGLISH_MODEL, MULTILINGUAL_MODEL)
    await work(after)
    state = await after.admin.state("messages")
    assert state.reindex.phase == pb.REINDEX_PHASE_SWITCHED, state.reindex.note
    assert state.embedding_model == MULTILINGUAL_MODEL

    # A rollback is permanent: the rebuild does not start again.
    await after.admin.roll_back("messages")
    await work(after)
    again = await started("multilingual")
    state = await again.admin.state("messages")
    assert (state.reindex.id, state.embedding_model) == (begun.id, ENGLISH_MODEL)
    assert state.reindex.phase == pb.REINDEX_PHASE_ROLLED_BACK
