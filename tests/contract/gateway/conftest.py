"""The run store on a fresh database, as two gateways see it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import pytest_asyncio

from strata.gateway.migrations import MIGRATIONS
from strata.gateway.runs.store import LeaseTerms, PostgresRunStore
from strata.shared.db import Database


class Rooms(Protocol):
    """The part of the session's databases that is needed here."""

    async def of(self, room: object) -> RoomUrls: ...


class RoomUrls(Protocol):
    admin_url: str
    service_url: str
    worker_url: str


@dataclass(frozen=True)
class Gateways:
    """Two gateways on one database; `short` holds its leases for a moment only."""

    urls: RoomUrls
    database: Database
    worker: Database
    first: PostgresRunStore
    second: PostgresRunStore
    short: PostgresRunStore


@pytest_asyncio.fixture
async def gateways(databases: Rooms) -> AsyncIterator[Gateways]:
    urls = await databases.of(MIGRATIONS)
    database = Database(urls.service_url, pool_size=8)
    worker = Database(urls.worker_url, pool_size=2)
    yield Gateways(
        urls,
        database,
        worker,
        PostgresRunStore(database, worker, LeaseTerms("gateway-1", open_limit=20)),
        PostgresRunStore(database, worker, LeaseTerms("gateway-2", open_limit=20)),
        PostgresRunStore(database, worker, LeaseTerms("gateway-3", lease_s=0.05)),
    )
    await database.close()
    await worker.close()
