"""Wires the parts that search, update and rebuild the index of the service."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from strata.recall.search.backlogs import (
    DeletedAgentBacklog,
    DeletedMessageBacklog,
    MessageBacklog,
)
from strata.recall.search.index import MESSAGES, MessageIndex
from strata.recall.search.rebuilds import MessageTexts
from strata.recall.settings import RecallSettings
from strata.recall.store import DeletedMessages, PendingMessages
from strata.recall.store.contents import MessageContents
from strata.recall.store.pending_messages import index_work
from strata.shared.db import Database
from strata.shared.search.embedding import EmbeddingModels
from strata.shared.search.engines import open_models, open_vectors
from strata.shared.search.indexing.generations import slot_of
from strata.shared.search.indexing.indexer import Indexer
from strata.shared.search.reindexing.index_admin import IndexAdmin, ManagedIndex
from strata.shared.search.reindexing.ledger import Ledger
from strata.shared.search.reindexing.routes import StoredRoutes
from strata.shared.search.reindexing.state import ReindexConfig
from strata.shared.search.reindexing.whole_collection import WholeCollection
from strata.shared.search.upkeep import index_upkeep
from strata.shared.search.vectors import VectorIndex
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.shared.service import BackgroundTask, Wiring
from strata.shared.telemetry import Telemetry

SCHEMA = "recall"
# Messages embedded and written in one step: small enough to alternate with the deletions.
_INDEX_BATCH = 32


@dataclass(frozen=True, slots=True)
class Indexes:
    """The parts of the index that the service uses.

    Attributes:
        messages: The index of messages; None if they are not indexed.
        admin: The operations for operators.
        background: The tasks that update and rebuild the index.
        indexers: The indexers of these tasks: first the indexer, then the reindexer.
    """

    messages: MessageIndex | None
    admin: IndexAdmin
    background: Sequence[BackgroundTask] = ()
    indexers: Sequence[Indexer] = ()


async def open_indexes(
    settings: RecallSettings,
    wiring: Wiring,
    stack: AsyncExitStack,
    database: Database,
    worker: Database | None,
) -> Indexes:
    """Opens models and engine, and wires the index; opens nothing if it is disabled.

    Raises:
        FailedPreconditionError: The weights of the model are missing.
        DataLossError: The weights do not match this release.
        ValueError: Indexing is enabled without a worker role.
    """
    if not settings.index_messages:
        admin = IndexAdmin(
            None, None, {}, allowed=settings.reindex_by_key, partition=settings.partition
        )
        return Indexes(None, admin)
    if worker is None:
        raise ValueError("Indexing messages needs worker_database_url.")
    models = await open_models(settings, wiring.shared_resources, stack)
    vectors = await open_vectors(settings, wiring.shared_resources, stack)
    return wire(settings, models, vectors, database, worker, wiring.telemetry)


def wire(
    settings: RecallSettings,
    models: EmbeddingModels,
    vectors: VectorIndex,
    database: Database,
    worker: Database,
    telemetry: Telemetry,
    reindex: ReindexConfig | None = None,
) -> Indexes:
    """Wires the index on open models and an open engine; for `reindex` see `index_upkeep`."""
    ledger = Ledger(worker, SCHEMA)
    routes = StoredRoutes(ledger, MESSAGES, models)
    index = MessageIndex(vectors, models, SparseEncoder(), routes=routes)
    pending = PendingMessages(database, worker)
    texts = MessageTexts(MessageContents(database, worker), pending)
    whole = WholeCollection(index.texts, texts, ledger)
    backlog = MessageBacklog(pending, index, telemetry, batch=_INDEX_BATCH)
    deleted = (
        DeletedMessageBacklog(DeletedMessages(worker), index),
        DeletedAgentBacklog(pending, index),
    )
    upkeep = index_upkeep(
        settings,
        ledger,
        models,
        [backlog],
        {slot_of(MESSAGES): whole},
        {"messages": ManagedIndex(routes, whole, texts.count, pending.lag)},
        find_work=index_work(worker).find,
        polled=deleted,
        reindex=reindex,
    )
    indexers = (upkeep.indexer, upkeep.reindexer)
    return Indexes(index, upkeep.admin, [one.run for one in indexers], indexers)
