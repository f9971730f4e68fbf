"""Run stores of several gateways on one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.gateway.runs.store.runs import PostgresRunStore
from strata.shared.db import Database

if TYPE_CHECKING:
    from conftest import ServiceDatabase


@dataclass(frozen=True)
class Gateways:
    """Two gateways on one database; `short` holds its leases for a moment only."""

    urls: ServiceDatabase
    database: Database
    worker: Database
    first: PostgresRunStore
    second: PostgresRunStore
    short: PostgresRunStore
