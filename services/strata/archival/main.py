"""The archival service: wiring, and the entry point of its process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

from strata.api.archival.v1 import file_index_service_pb2 as file_pb
from strata.archival.convert.passages import MAX_PASSAGE_TOKENS
from strata.archival.migrations import MIGRATIONS
from strata.archival.search.chunk_search import FileChunkSearch
from strata.archival.search.indexes import open_indexes
from strata.archival.search.passage_search import PassageSearch
from strata.archival.search.rebuilds import ArchiveModels
from strata.archival.servicers import (
    AgentArchiveServicer,
    ArchiveServicer,
    FileIndexServicer,
    PassageIndexServicer,
    PassageServicer,
)
from strata.archival.settings import ArchivalSettings
from strata.archival.store import (
    RECEIPTS,
    Expiry,
    PostgresArchiveStore,
    PostgresFileChunkStore,
    PostgresPassageHistory,
    PostgresPassageStore,
)
from strata.shared.auth import TokenVerifier
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.interceptors.auth import BoundKeys, TokenAuthenticator
from strata.shared.metric_names import SEARCH_SECONDS
from strata.shared.partitioned_service import build_partitions
from strata.shared.search.reranking.factory import open_reranking
from strata.shared.server import run_service
from strata.shared.service import GrpcService, Service, Wiring

NAME = "archival"
# The indexer and the reindexer each hold a connection with a claim, and write on others.
_WORKER_POOL = 5
# Passages destroyed in one transaction: its locks are short.
_EXPIRY_BATCH = 500
# Pause between two searches for expired passages; searches no longer return them.
_EXPIRY_POLL_S = 30.0
_FILE_INDEX = file_pb.DESCRIPTOR.services_by_name["FileIndexService"]
# SearchFileChunks is not among them: core memory searches with its caller's token.
_FOR_FILE_WORKER = frozenset(
    f"/{_FILE_INDEX.full_name}/{_FILE_INDEX.methods_by_name[method].name}"
    for method in ("IndexFile", "GetFileProgress", "DropFiles")
)


async def build(settings: ArchivalSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service.

    Args:
        settings: Its settings.
        wiring: The shared parts of the process.
        stack: Closes the resources of the service.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``), or the
            folder of the reranker cannot be used (``MODEL_NOT_CONFIGURED``).
        UnavailableError: The database cannot be reached.
    """
    return await build_partitions(_build, settings, wiring, stack)


async def _build(settings: ArchivalSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service for one partition."""
    await MIGRATIONS.check(settings.database_url, settings.partition)
    database = open_database(settings, NAME, wiring.telemetry, stack)
    worker = open_worker_database(settings, NAME, wiring.telemetry, stack, pool_size=_WORKER_POOL)
    indexes = await open_indexes(settings, wiring, stack, database, worker)
    reranking = await open_reranking(settings, wiring.shared_resources, wiring.telemetry, stack)
    embedder, indexer = indexes.embedder, indexes.indexer
    archives = PostgresArchiveStore(database)
    passages = PostgresPassageStore(database)
    chunks = PostgresFileChunkStore(database)
    expiry = Expiry(
        database,
        worker,
        batch=_EXPIRY_BATCH,
        poll=_EXPIRY_POLL_S,
        wake=indexer.wake,
    )
    archive_models = ArchiveModels(
        indexes.assignments, indexes.archives, indexes.passages, indexes.reindexer.wake
    )
    passage_search = PassageSearch(
        passages,
        indexes.passages,
        wiring.clock,
        reranking,
        wiring.telemetry.histogram(SEARCH_SECONDS, collection="passages"),
    )
    chunk_search = FileChunkSearch(
        chunks,
        indexes.chunks,
        wiring.telemetry.histogram(SEARCH_SECONDS, collection="file-chunks"),
    )
    servicers = (
        ArchiveServicer(archives, indexes.models, archive_models, wiring.clock, indexer.wake),
        PassageIndexServicer(indexes.admin),
        PassageServicer(
            passages,
            PostgresPassageHistory(database),
            archives,
            passage_search,
            embedder,
            wiring.clock,
            token_limit=MAX_PASSAGE_TOKENS,
            wake=indexer.wake,
        ),
        AgentArchiveServicer(archives, indexer.wake),
        FileIndexServicer(
            chunks, chunk_search, embedder, token_limit=MAX_PASSAGE_TOKENS, wake=indexer.wake
        ),
    )
    return Service(
        name=NAME,
        services=[GrpcService.of(servicer) for servicer in servicers],
        background=[
            indexer.run,
            indexes.reindexer.run,
            partial(RECEIPTS.delete_expired_hourly, worker),
            expiry.run,
        ],
        authenticator=TokenAuthenticator(wiring.verifier, _workers(settings, wiring)),
    )


def _workers(settings: ArchivalSettings, wiring: Wiring) -> Sequence[BoundKeys]:
    keys = settings.worker_keys()
    if not keys:
        return ()
    return (BoundKeys(TokenVerifier(keys, clock=wiring.clock), _FOR_FILE_WORKER),)


def main() -> None:
    """Runs the service in a separate process."""
    run_service(NAME, build, ArchivalSettings())


if __name__ == "__main__":
    main()
