"""The run store as several gateways on one database see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from strata.gateway.runs.store import PostgresRunStore
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
