"""The recall room: wiring, and the entry point of its process."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.recall.migrations import MIGRATIONS
from strata.recall.servicer import MessageServicer, WindowServicer
from strata.recall.settings import RecallSettings
from strata.recall.store import PostgresMessageStore, PostgresWindowStore
from strata.shared.db import Database
from strata.shared.room import Room, Service, Wiring
from strata.shared.server import run_room

NAME = "recall"


async def build(settings: RecallSettings, wiring: Wiring, stack: AsyncExitStack) -> Room:
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
        settings.database_url,
        pool_size=settings.pool_size,
        application_name="strata-recall",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(database.close)
    messages = MessageServicer(PostgresMessageStore(database))
    windows = WindowServicer(PostgresWindowStore(database), wiring.clock, settings.search_language)
    return Room(
        name=NAME,
        services=[
            Service(
                message_pb.DESCRIPTOR.services_by_name["MessageService"].full_name,
                message_grpc.add_MessageServiceServicer_to_server,
                messages,
            ),
            Service(
                window_pb.DESCRIPTOR.services_by_name["WindowService"].full_name,
                window_grpc.add_WindowServiceServicer_to_server,
                windows,
            ),
        ],
    )


def main() -> None:
    """Runs the room in a process of its own."""
    run_room(NAME, build, RecallSettings())


if __name__ == "__main__":
    main()
