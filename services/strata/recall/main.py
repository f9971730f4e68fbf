"""The recall service: wiring, and the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.api.recall.v1 import message_index_service_pb2 as index_pb
from strata.api.recall.v1 import message_index_service_pb2_grpc as index_grpc
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
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
from strata.shared.db import Database
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
    await MIGRATIONS.check(settings.database_url)
    database = Database(
        settings.database_url,
        pool_size=settings.pool_size,
        application_name="strata-recall",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(database.close)
    worker = _open_worker(settings, stack)
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
        MessageSearch(PostgresSearchStore(database), indexes.messages, wiring.clock, reranking),
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
            GrpcService(
                message_pb.DESCRIPTOR.services_by_name["MessageService"].full_name,
                message_grpc.add_MessageServiceServicer_to_server,
                messages,
            ),
            GrpcService(
                window_pb.DESCRIPTOR.services_by_name["WindowService"].full_name,
                window_grpc.add_WindowServiceServicer_to_server,
                windows,
            ),
            GrpcService(
                index_pb.DESCRIPTOR.services_by_name["MessageIndexService"].full_name,
                index_grpc.add_MessageIndexServiceServicer_to_server,
                MessageIndexServicer(indexes.admin),
            ),
        ],
        background=background,
    )


def _open_worker(settings: RecallSettings, stack: AsyncExitStack) -> Database | None:
    if not settings.worker_database_url:
        return None
    worker = Database(
        settings.worker_database_url,
        pool_size=_WORKER_POOL,
        application_name="strata-recall-worker",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(worker.close)
    return worker


def main() -> None:
    """Runs the service in a process of its own."""
    run_service(NAME, build, RecallSettings())


if __name__ == "__main__":
    main()
