"""Run stores of several gateways on one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from strata.gateway.runs.domain.runs import NewRun
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.protocol.errors import FailedPreconditionError
from strata.shared.db import Database

if TYPE_CHECKING:
    from conftest import ServiceDatabase


@dataclass(frozen=True)
class Gateways:
    """The stores of two gateways on one database; the leases of `short` expire soon."""

    urls: ServiceDatabase
    database: Database
    worker: Database
    first: PostgresRunStore
    second: PostgresRunStore
    short: PostgresRunStore


async def refused(gateways: Gateways, new: NewRun) -> FailedPreconditionError:
    """Accepts a run, and returns the error with which the store refuses it."""
    with pytest.raises(FailedPreconditionError) as raised:
        await gateways.first.accept(new)
    return raised.value
