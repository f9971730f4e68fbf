"""Run stores of several gateways on one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import asyncpg

from strata.gateway.runs.store.runs import PostgresRunStore
from strata.shared.db import Database


class Services(Protocol):
    """The part of the session's databases that is needed here."""

    async def of(self, service: object) -> ServiceUrls: ...

    def url(self, database: str) -> str: ...


class ServiceUrls(Protocol):
    admin_url: str
    service_url: str
    worker_url: str


@dataclass(frozen=True)
class Gateways:
    """Two gateways on one database; `short` holds its leases for a moment only."""

    urls: ServiceUrls
    database: Database
    worker: Database
    first: PostgresRunStore
    second: PostgresRunStore
    short: PostgresRunStore


async def drop(databases: Services, urls: ServiceUrls) -> None:
    """Drops a test's database: there are many of them, and each takes some megabytes."""
    connection = await asyncpg.connect(databases.url("postgres"))
    try:
        name = urls.admin_url.rpartition("/")[2]
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await connection.close()
