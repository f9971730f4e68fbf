"""The metrics of the connections of a service, on the real PostgreSQL."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from strata.gateway.migrations import MIGRATIONS
from strata.shared.db.opening import open_database, open_worker_database
from strata.shared.metric_names import (
    DATABASE_CONNECTIONS,
    DATABASE_CONNECTIONS_IN_USE,
    DATABASE_POOL_SIZE,
    DATABASE_WAIT_SECONDS,
)
from strata.shared.settings import ServiceSettings
from strata.shared.telemetry import Telemetry

if TYPE_CHECKING:
    from conftest import Databases


async def test_connections_and_waits_for_them_are_measured(databases: Databases) -> None:
    urls = await databases.of(MIGRATIONS)
    settings = ServiceSettings(
        database_url=urls.service_url,
        worker_database_url=urls.worker_url,
        pool_size=2,
    )
    telemetry = Telemetry()

    def measured(role: str) -> list[float]:
        names = (DATABASE_POOL_SIZE, DATABASE_CONNECTIONS, DATABASE_CONNECTIONS_IN_USE)
        return [telemetry.total(name, service="gateway", role=role) for name in names]

    async with AsyncExitStack() as stack:
        database = open_database(settings, "gateway", telemetry, stack)
        worker = open_worker_database(settings, "gateway", telemetry, stack, pool_size=5)
        assert measured("service") == [2, 0, 0]
        async with database.system_transaction():
            assert measured("service") == [2, 1, 1]
            await database.ping()
        assert measured("service") == [2, 2, 0]
        await worker.ping()
        assert measured("worker") == [5, 1, 0]
    waits = telemetry.histogram(DATABASE_WAIT_SECONDS, service="gateway", role="service")
    assert waits.count == 2


async def test_the_worker_role_may_use_all_of_its_connections(databases: Databases) -> None:
    urls = await databases.of(MIGRATIONS)
    settings = ServiceSettings(
        database_url=urls.service_url, worker_database_url=urls.worker_url, pool_size=4
    )
    async with AsyncExitStack() as stack:
        worker = open_worker_database(settings, "gateway", Telemetry(), stack, pool_size=4)
        for _ in range(4):
            await stack.enter_async_context(worker.system_transaction())
        assert worker.connections_in_use == 4
