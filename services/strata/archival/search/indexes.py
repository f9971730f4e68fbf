"""Wires the parts that search, update and rebuild the indexes of the service."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from strata.archival.search.backlogs import ChunkBacklog, PassageBacklog, TombstoneBacklog
from strata.archival.search.index import (
    ARCHIVE_PASSAGES,
    FILE_CHUNKS,
    PASSAGES,
    ChunkIndex,
    PassageIndex,
)
from strata.archival.search.rebuilds import ArchiveRebuild, ChunkTexts, PassageTexts
from strata.archival.settings import ArchivalSettings
from strata.archival.store import ChunkQueue, PendingPassages
from strata.archival.store.chunk_queue import ABANDONED_AFTER, ANY_WAITING_SET
from strata.archival.store.contents import ChunkContents, PassageContents
from strata.archival.store.embedding_assignment import SCHEMA, EmbeddingAssignments
from strata.archival.store.pending_passages import (
    ANY_PENDING_PASSAGE,
    ANY_SETTLED_TOMBSTONE,
    SETTLED_AFTER,
)
from strata.shared.db import Database
from strata.shared.search.embedding import Embedder, EmbeddingModels
from strata.shared.search.engines import open_models, open_vectors
from strata.shared.search.indexing.generations import slot_of
from strata.shared.search.indexing.indexer import Backlog, Indexer
from strata.shared.search.reindexing.index_admin import IndexAdmin, ManagedIndex
from strata.shared.search.reindexing.ledger import Ledger
from strata.shared.search.reindexing.reindexer import (
    Rebuildable,
    archive_of,
)
from strata.shared.search.reindexing.routes import GenerationsByModel, StoredRoutes
from strata.shared.search.reindexing.state import ReindexConfig
from strata.shared.search.reindexing.whole_collection import WholeCollection
from strata.shared.search.upkeep import index_upkeep
from strata.shared.search.vectors import VectorIndex
from strata.shared.search.vectors.sparse import SparseEncoder
from strata.shared.service import Wiring
from strata.shared.telemetry import Telemetry
from strata.shared.waiting_work import WaitingWork

# Passages embedded and written in one step: bulk uploads need few steps.
_INDEX_BATCH = 128
# Chunks in one step, between passages: few, so that a large file does not delay passages.
_INDEX_FILE_BATCH = 8


@dataclass(frozen=True, slots=True)
class Indexes:
    """The parts of the indexes that the servicers use.

    Attributes:
        embedder: The default embedding model.
        models: All embedding models.
        passages: The index of passages.
        chunks: The index of chunks of files.
        indexer: Writes pending passages and chunks.
        reindexer: Runs rebuilds, concurrently with the indexer.
        assignments: The embedding models of archives.
        archives: Rebuilds single archives.
        admin: The operations for operators.
    """

    embedder: Embedder
    models: EmbeddingModels
    passages: PassageIndex
    chunks: ChunkIndex
    indexer: Indexer
    reindexer: Indexer
    assignments: EmbeddingAssignments
    archives: ArchiveRebuild
    admin: IndexAdmin


async def open_indexes(
    settings: ArchivalSettings,
    wiring: Wiring,
    stack: AsyncExitStack,
    database: Database,
    worker: Database,
) -> Indexes:
    """Opens models and engine, and wires the indexes on them.

    Raises:
        FailedPreconditionError: The weights of the model are missing.
        DataLossError: The weights do not match this release.
    """
    models = await open_models(settings, wiring.shared_resources, stack)
    vectors = await open_vectors(settings, wiring.shared_resources, stack)
    return await wire(settings, models, vectors, database, worker, wiring.telemetry)


async def wire(
    settings: ArchivalSettings,
    models: EmbeddingModels,
    vectors: VectorIndex,
    database: Database,
    worker: Database,
    telemetry: Telemetry | None = None,
    reindex: ReindexConfig | None = None,
) -> Indexes:
    """Wires the indexes on open models and an open engine; for `reindex` see `index_upkeep`."""
    ledger = Ledger(worker, SCHEMA)
    assignments = EmbeddingAssignments(database)
    passages = PassageIndex(
        vectors,
        models,
        SparseEncoder(),
        routes=StoredRoutes(ledger, PASSAGES, models),
        own=GenerationsByModel(ledger, ARCHIVE_PASSAGES),
        assignments=assignments,
    )
    chunk_routes = StoredRoutes(ledger, FILE_CHUNKS, models)
    chunks = ChunkIndex(vectors, models, SparseEncoder(), routes=chunk_routes)
    pending, queue = PendingPassages(database, worker), ChunkQueue(database, worker)
    of_passages = PassageContents(database, worker)
    passage_texts = PassageTexts(of_passages, pending, assignments)
    chunk_texts = ChunkTexts(ChunkContents(database, worker))
    whole_passages = WholeCollection(passages.texts, passage_texts, ledger)
    whole_chunks = WholeCollection(chunks.texts, chunk_texts, ledger)
    archives = ArchiveRebuild(passages, of_passages, pending, assignments)
    backlogs: list[Backlog] = [
        PassageBacklog(pending, passages, batch=_INDEX_BATCH, telemetry=telemetry),
        ChunkBacklog(queue, chunks, batch=_INDEX_FILE_BATCH, telemetry=telemetry),
    ]
    rebuilds: dict[str, Rebuildable] = {
        slot_of(PASSAGES): whole_passages,
        slot_of(FILE_CHUNKS): whole_chunks,
        archive_of(slot_of(PASSAGES)): archives,
    }
    offered = {
        "passages": ManagedIndex(
            passages.texts.routes, whole_passages, passage_texts.count, pending.lag
        ),
        "files": ManagedIndex(chunks.texts.routes, whole_chunks, chunk_texts.count, queue.lag),
    }
    work = WaitingWork(
        worker,
        {
            "passages": ANY_PENDING_PASSAGE,
            "tombstones": ANY_SETTLED_TOMBSTONE,
            "files": ANY_WAITING_SET,
        },
        {"abandoned": ABANDONED_AFTER, "settled": SETTLED_AFTER},
    )
    upkeep = index_upkeep(
        settings,
        ledger,
        models,
        backlogs,
        rebuilds,
        offered,
        find_work=work.find,
        polled=(TombstoneBacklog(pending, batch=_INDEX_BATCH),),
        reindex=reindex,
    )
    embedder = await models.get(models.default.id)
    return Indexes(
        embedder,
        models,
        passages,
        chunks,
        upkeep.indexer,
        upkeep.reindexer,
        assignments,
        archives,
        upkeep.admin,
    )
