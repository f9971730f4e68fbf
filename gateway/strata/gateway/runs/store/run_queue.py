"""Measures the queue of runs, which all gateways share."""

from __future__ import annotations

from strata.shared.db import sql
from strata.shared.db.database import Database
from strata.shared.metric_names import RUNS_QUEUED
from strata.shared.polling import keep_polling
from strata.shared.telemetry import Telemetry

_MOST_COUNTED = 10_000
_EVERY_S = 15.0

_COUNT = sql(f"""
SELECT count(*) FROM (
    SELECT FROM gateway.runs WHERE state = 'QUEUED' AND run_at <= now() LIMIT {_MOST_COUNTED}
) AS queued
""")


class RunQueue:
    """The runs of all projects that are due and have not started.

    Args:
        worker: The database, with the worker role.
        telemetry: Registry of the gauge.
    """

    def __init__(self, worker: Database, telemetry: Telemetry) -> None:
        self._worker = worker
        self._queued = telemetry.gauge(RUNS_QUEUED)

    async def keep_measuring(self) -> None:
        """Sets the gauge every quarter of a minute until it is cancelled."""
        await keep_polling(self.measure, _EVERY_S, "queued runs not counted")

    async def measure(self) -> None:
        """Counts the queued runs.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        rows = await self._worker.system_query(_COUNT)
        self._queued.set(rows[0][0])
