"""The core memory room: wiring, and the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta

from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.api.core_memory.v1 import block_service_pb2_grpc as block_grpc
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.api.core_memory.v1 import context_service_pb2_grpc as context_grpc
from strata.api.core_memory.v1 import file_service_pb2 as file_pb
from strata.api.core_memory.v1 import file_service_pb2_grpc as file_grpc
from strata.core_memory.domain.core_memory import CoreMemory
from strata.core_memory.migrations import MIGRATIONS
from strata.core_memory.servicer import BlockServicer, ContextServicer
from strata.core_memory.settings import CoreMemorySettings
from strata.core_memory.store import PostgresBlockStore, RequestLog
from strata.shared.db import Database
from strata.shared.room import BackgroundTask, Room, Service, Wiring
from strata.shared.server import run_room

NAME = "core_memory"


async def build(settings: CoreMemorySettings, wiring: Wiring, stack: AsyncExitStack) -> Room:
    """Builds the room.

    Args:
        settings: Its settings.
        wiring: The process that it is built in.
        stack: Closes what the room opens.

    Raises:
        FailedPreconditionError: The database is not migrated (``SCHEMA_OUTDATED``).
        UnavailableError: The database cannot be reached.
    """
    await MIGRATIONS.check(settings.database_url)
    database = Database(
        settings.database_url, pool_size=settings.pool_size, application_name="strata-core-memory"
    )
    stack.push_async_callback(database.close)
    store = PostgresBlockStore(database)
    memory = CoreMemory(store, wiring.clock)
    blocks = BlockServicer(store, memory)
    files = file_grpc.FileServiceServicer()
    return Room(
        name=NAME,
        services=[
            Service(
                block_pb.DESCRIPTOR.services_by_name["BlockService"].full_name,
                block_grpc.add_BlockServiceServicer_to_server,
                blocks,
            ),
            Service(
                context_pb.DESCRIPTOR.services_by_name["ContextService"].full_name,
                context_grpc.add_ContextServiceServicer_to_server,
                ContextServicer(store, memory),
            ),
            Service(
                file_pb.DESCRIPTOR.services_by_name["FileService"].full_name,
                file_grpc.add_FileServiceServicer_to_server,
                files,
            ),
        ],
        background=_background(settings, stack),
    )


def _background(settings: CoreMemorySettings, stack: AsyncExitStack) -> list[BackgroundTask]:
    if not settings.worker_database_url:
        return []
    database = Database(
        settings.worker_database_url,
        pool_size=1,
        application_name="strata-core-memory-worker",
    )
    stack.push_async_callback(database.close)
    log = RequestLog(database, timedelta(days=settings.request_days))
    return [log.keep_forgetting]


def main() -> None:
    """Runs the room in a process of its own."""
    run_room(NAME, build, CoreMemorySettings())


if __name__ == "__main__":
    main()
