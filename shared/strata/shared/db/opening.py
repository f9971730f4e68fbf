"""Opens the databases in the settings of a service, and measures their connections."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Literal

from strata.shared.db.database import Database
from strata.shared.fair_slots import SHARE
from strata.shared.metric_names import (
    DATABASE_CONNECTIONS,
    DATABASE_CONNECTIONS_IN_USE,
    DATABASE_POOL_SIZE,
    DATABASE_WAIT_SECONDS,
)
from strata.shared.settings import ServiceSettings
from strata.shared.telemetry import Telemetry

_Role = Literal["service", "worker"]


def open_database(
    settings: ServiceSettings, service: str, telemetry: Telemetry, stack: AsyncExitStack
) -> Database:
    """Opens the database of the partition in the settings, with the service role.

    Args:
        settings: Settings of the service.
        service: Its name; the connections are named after it.
        telemetry: Gets the metrics of the connections.
        stack: Closes the database.
    """
    return _open(settings, "service", settings.pool_size, service, telemetry, stack)


def open_worker_database(
    settings: ServiceSettings,
    service: str,
    telemetry: Telemetry,
    stack: AsyncExitStack,
    *,
    pool_size: int,
) -> Database:
    """Opens a database with the worker role; arguments as for `open_database`."""
    return _open(settings, "worker", pool_size, service, telemetry, stack)


def _open(
    settings: ServiceSettings,
    role: _Role,
    pool_size: int,
    service: str,
    telemetry: Telemetry,
    stack: AsyncExitStack,
) -> Database:
    is_worker = role == "worker"
    name = f"{service}_worker" if is_worker else service
    database = Database(
        settings.worker_database_url if is_worker else settings.database_url,
        pool_size=pool_size,
        application_name=f"strata-{name.replace('_', '-')}",
        prepared_statements=settings.prepared_statements,
        waits=telemetry.histogram(DATABASE_WAIT_SECONDS, service=service, role=role),
        share=1.0 if is_worker else SHARE,
        partition=settings.partition,
    )
    stack.push_async_callback(database.close)
    telemetry.gauge(DATABASE_POOL_SIZE, service=service, role=role).set(pool_size)
    for gauge, read in (
        (DATABASE_CONNECTIONS, lambda: database.connections),
        (DATABASE_CONNECTIONS_IN_USE, lambda: database.connections_in_use),
    ):
        telemetry.read_gauge(gauge, read, service=service, role=role)
    return database
