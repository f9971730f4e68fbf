"""The recall service: wiring, and the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.recall.domain.retention_worker import RetentionWorker
from strata.recall.migrations import MIGRATIONS
from strata.recall.search.indexes import open_indexes
from strata.recall.search.message_search import MessageSearch
from strata.recall.servicers.indexes import MessageIndexServicer
from strata.recall.servicers.messages import MessageServicer
from strata.recall.servicers.windows import WindowServicer
from strata.recall.settings import RecallSettings
from strata.recall.store import (
    PostgresForkStore,
    PostgresImageStore,
    PostgresMessageStore,
    PostgresOldMessages,
    PostgresPinStore,
    PostgresRetentionSettings,
    PostgresSearchStore,
    PostgresWindowStore,
)
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.metric_names import SEARCH_SECONDS
from strata.shared.partitioned_service import build_partitions
from strata.shared.search.reranking.factory import open_reranking
from strata.shared.server import run_service
from strata.shared.service import GrpcService, Service, Wiring

NAME = "recall"
# The reindexer holds a connection with a claim; it, the indexer and retention write on others.
_WORKER_POOL = 5
# Messages that the retention worker deletes in one transaction: short locks, few transactions.
_RETENTION_BATCH = 200
# Retention periods are days, so an hour more is small.
_RETENTION_EVERY_S = 3600.0


async def build(settings: RecallSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service.

    Args:
        settings: Its settings.
        wiring: The shared parts of the process.
        stack: Closes the resources of the service.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``), or the
            folder of the reranker cannot be used (``MODEL_NOT_CONFIGURED``).
        UnavailableError: The database cannot be reached.
        ValueError: Indexing is enabled without a worker role.
    """
    return await build_partitions(_build, settings, wiring, stack)


async def _build(settings: RecallSettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service for one partition."""
    await MIGRATIONS.check(settings.database_url, settings.partition)
    database = open_database(settings, NAME, wiring.telemetry, stack)
    worker = None
    if settings.worker_database_url:
        worker = open_worker_database(
            settings, NAME, wiring.telemetry, stack, pool_size=_WORKER_POOL
        )
    indexes = await open_indexes(settings, wiring, stack, database, worker)
    reranking = await open_reranking(settings, wiring.shared_resources, wiring.telemetry, stack)
    background = indexes.background
    if worker is not None:
        retention = RetentionWorker(
            PostgresOldMessages(database, worker),
            wiring.clock,
            batch=_RETENTION_BATCH,
            every=_RETENTION_EVERY_S,
        )
        background = [*background, retention.run]
    messages = MessageServicer(
        PostgresMessageStore(database),
        PostgresImageStore(database),
        PostgresPinStore(database),
        MessageSearch(
            PostgresSearchStore(database),
            indexes.messages,
            wiring.clock,
            reranking,
            wiring.telemetry.histogram(SEARCH_SECONDS, collection="messages"),
        ),
        PostgresRetentionSettings(database),
        wiring.clock,
    )
    windows = WindowServicer(
        PostgresWindowStore(database),
        PostgresForkStore(database),
        wiring.clock,
        settings.search_language,
    )
    return Service(
        name=NAME,
        services=[
            GrpcService.of(messages),
            GrpcService.of(windows),
            GrpcService.of(MessageIndexServicer(indexes.admin)),
        ],
        background=background,
    )


def main() -> None:
    """Runs the service in a separate process."""
    run_service(NAME, build, RecallSettings())


if __name__ == "__main__":
    main()
