"""Opens the databases of a service as its settings say."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.shared.db.database import Database
from strata.shared.settings import ServiceSettings


def open_database(settings: ServiceSettings, service: str, stack: AsyncExitStack) -> Database:
    """Opens a database with the service role.

    Args:
        settings: Settings of the service.
        service: Its name; the connections are named after it.
        stack: Closes the database.
    """
    return _open(settings.database_url, settings.pool_size, service, settings, stack)


def open_worker_database(
    settings: ServiceSettings, service: str, stack: AsyncExitStack, *, pool_size: int
) -> Database:
    """Opens a database with the worker role; arguments as for `open_database`."""
    return _open(settings.worker_database_url, pool_size, f"{service}_worker", settings, stack)


def _open(
    url: str, pool_size: int, name: str, settings: ServiceSettings, stack: AsyncExitStack
) -> Database:
    database = Database(
        url,
        pool_size=pool_size,
        application_name=f"strata-{name.replace('_', '-')}",
        prepared_statements=settings.prepared_statements,
    )
    stack.push_async_callback(database.close)
    return database
