"""What the stores of runs have in common: their connections and the terms of their leases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strata.gateway.runs.domain.quotas import RunQuotas
from strata.gateway.runs.domain.timing import LEASE_S
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.db import Database, SqlStatement, StatementResult


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Terms of the leases that this gateway holds on runs; times in seconds.

    Attributes:
        owner: ID of this gateway process; unique for each start.
        lease_s: Time after which a lease that is not renewed expires.
        run_s: Time limit of a run, counted from its first dispatch.
        quotas: Limits of the runs of one project.
        address: Address of this gateway for other gateways; empty if they cannot reach it.
    """

    owner: str
    lease_s: float = LEASE_S
    run_s: float = 840.0
    quotas: RunQuotas = field(default_factory=RunQuotas)
    address: str = ""

    def parameters(self) -> dict[str, object]:
        """Returns the parameters of a statement that starts a run with `TAKE_LEASE`."""
        return {
            "owner": self.owner,
            "address": self.address,
            "lease_s": self.lease_s,
            "run_s": self.run_s,
        }


TAKE_LEASE = """owner = :owner, owner_address = :address, attempt = attempt + 1,
    lease_until = now() + make_interval(secs => :lease_s),
    start_time = coalesce(start_time, now()),
    deadline_time = coalesce(deadline_time, now() + make_interval(secs => :run_s))"""
"""The changes of a row of `runs` when a gateway takes its lease; see `LeaseTerms.parameters`."""


class RunTables:
    """The connections to the tables of runs.

    Args:
        database: Connections with the service role; each transaction is limited to one project.
        worker: Connections with the worker role, for leases of the runs of all projects.
        terms: Terms of the leases of this gateway.
    """

    def __init__(self, database: Database, worker: Database, terms: LeaseTerms) -> None:
        self._database = database
        self._worker = worker
        self._terms = terms

    async def _read(self, statement: SqlStatement, values: Mapping[str, Any]) -> StatementResult:
        """Runs one SELECT of the project that `values` name."""
        project_id: str = values["project_id"]
        return await self._database.execute(
            statement, values, project_id=project_id, read_only=True
        )


def run_not_found(run_id: str) -> NotFoundError:
    """Returns the error for a run that does not exist in the project."""
    return NotFoundError(
        f"There is no run {run_id}.", reason=Reason.RUN_NOT_FOUND, metadata={"id": run_id}
    )
