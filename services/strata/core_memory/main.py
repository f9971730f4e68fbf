"""The core memory service: wiring, and the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from strata.core_memory.domain.core_memory import CoreMemory
from strata.core_memory.files.archival_client import ArchivalFileIndex
from strata.core_memory.files.domain.lines import LineReader
from strata.core_memory.files.file_windows import Windows
from strata.core_memory.files.grep import Grep
from strata.core_memory.files.index_sync import FileIndexSync
from strata.core_memory.files.ingest import (
    FILE_LEASE_S,
    FILE_POLL_S,
    ContentReader,
    Ingest,
    IngestOptions,
)
from strata.core_memory.files.search import FileSearch
from strata.core_memory.files.store.contents import ContentStore
from strata.core_memory.files.store.file_windows import PostgresFileWindowStore
from strata.core_memory.files.store.files import PostgresFileStore
from strata.core_memory.files.store.folders import PostgresFolderStore
from strata.core_memory.files.store.queue import FileQueue
from strata.core_memory.files.store.texts import PostgresTextStore
from strata.core_memory.files.store.uploads import PostgresUploadStore
from strata.core_memory.files.text_extraction.reader import FileReader, ReadingLimits
from strata.core_memory.files.uploads import Uploads
from strata.core_memory.migrations import MIGRATIONS
from strata.core_memory.request_table import REQUESTS
from strata.core_memory.servicers.blocks import BlockServicer
from strata.core_memory.servicers.context import ContextServicer
from strata.core_memory.servicers.files import FileParts, FileServicer
from strata.core_memory.settings import CoreMemorySettings
from strata.core_memory.store.blocks import PostgresBlockStore
from strata.shared.auth import TokenSigner
from strata.shared.db import Database
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.foreground_work import CALLS_OF_RUNS
from strata.shared.partitioned_service import build_partitions
from strata.shared.server import run_service
from strata.shared.service import BackgroundTask, GrpcService, Service, Wiring

NAME = "core_memory"
# Shared by the readers of files, the index, deletions and the cleanup of old requests.
_WORKER_CONNECTIONS = 3


async def build(settings: CoreMemorySettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service.

    Args:
        settings: Its settings.
        wiring: The shared parts of the process.
        stack: Closes the resources of the service.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
    """
    return await build_partitions(_build, settings, wiring, stack)


async def _build(settings: CoreMemorySettings, wiring: Wiring, stack: AsyncExitStack) -> Service:
    """Builds the service for one partition."""
    await MIGRATIONS.check(settings.database_url, settings.partition)
    database = open_database(settings, NAME, wiring.telemetry, stack)
    store = PostgresBlockStore(database)
    memory = CoreMemory(store, wiring.clock)
    blocks = BlockServicer(store, memory)
    worker = None
    if settings.worker_database_url:
        worker = open_worker_database(
            settings, NAME, wiring.telemetry, stack, pool_size=_WORKER_CONNECTIONS
        )
    index = _file_index(settings, wiring)
    ingest = None if worker is None else _ingest(settings, database, worker, index)
    parts = _file_parts(settings, wiring, database, index, ingest)
    return Service(
        name=NAME,
        services=[
            GrpcService.of(blocks),
            GrpcService.of(ContextServicer(store, memory, parts.windows)),
            GrpcService.of(FileServicer(parts)),
        ],
        background=_background(worker, ingest),
    )


def _background(worker: Database | None, ingest: Ingest | None) -> list[BackgroundTask]:
    if worker is None or ingest is None:
        return []
    return [partial(REQUESTS.delete_expired_hourly, worker), ingest.run]


def _file_index(settings: CoreMemorySettings, wiring: Wiring) -> ArchivalFileIndex:
    key = settings.worker_key()
    signer = TokenSigner(key) if key else None
    return ArchivalFileIndex(wiring.channel("archival"), signer, settings.partition)


def _ingest(
    settings: CoreMemorySettings, database: Database, worker: Database, index: ArchivalFileIndex
) -> Ingest:
    queue, contents = FileQueue(database, worker), ContentStore(database)
    reader = FileReader(
        ReadingLimits(settings.file_reading_timeout_s, settings.file_reading_memory_bytes)
    )
    # Without a signing key the worker cannot call the index.
    index_sync = FileIndexSync(
        queue, contents, index if settings.worker_key() else None, FILE_LEASE_S, CALLS_OF_RUNS
    )
    options = IngestOptions(readers=settings.file_readers, lease=FILE_LEASE_S, poll=FILE_POLL_S)
    content_reader = ContentReader(queue, contents, reader, FILE_LEASE_S, CALLS_OF_RUNS)
    return Ingest(content_reader, index_sync, queue, options, CALLS_OF_RUNS)


def _file_parts(
    settings: CoreMemorySettings,
    wiring: Wiring,
    database: Database,
    index: ArchivalFileIndex,
    ingest: Ingest | None,
) -> FileParts:
    clock = wiring.clock
    # Without a worker there is nothing to wake.
    wake = (lambda: None) if ingest is None else ingest.wake
    folders, windows = PostgresFolderStore(database, clock), PostgresFileWindowStore(database)
    uploads = PostgresUploadStore(database, clock)
    return FileParts(
        folders=folders,
        files=PostgresFileStore(database),
        uploads=Uploads(uploads, folders, limit=settings.max_file_bytes, wake=wake),
        windows=Windows(windows, clock),
        grep=Grep(PostgresTextStore(database), windows, clock),
        lines=LineReader(PostgresTextStore(database)),
        search=FileSearch(windows, index, clock),
        knows_agent=PostgresBlockStore(database).knows_agent,
        deleted=wake,
    )


def main() -> None:
    """Runs the service in a separate process."""
    run_service(NAME, build, CoreMemorySettings())


if __name__ == "__main__":
    main()
