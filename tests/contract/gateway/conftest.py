"""Fixtures with several gateways on one fresh database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

from contract.gateway.stores import Gateways
from strata.gateway.migrations import MIGRATIONS
from strata.gateway.runs.domain.quotas import RunQuotas
from strata.gateway.runs.store.base import LeaseTerms
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.shared.db import Database

if TYPE_CHECKING:
    from conftest import Databases


@pytest_asyncio.fixture
async def gateways(databases: Databases) -> AsyncIterator[Gateways]:
    urls = await databases.of(MIGRATIONS)
    database = Database(urls.service_url, pool_size=8)
    worker = Database(urls.worker_url, pool_size=2)
    yield Gateways(
        urls,
        database,
        worker,
        PostgresRunStore(database, worker, LeaseTerms("gateway-1", quotas=RunQuotas(20, 20))),
        PostgresRunStore(database, worker, LeaseTerms("gateway-2", quotas=RunQuotas(20, 20))),
        PostgresRunStore(database, worker, LeaseTerms("gateway-3", lease_s=0.05)),
    )
    await database.close()
    await worker.close()
    await databases.drop(urls)
