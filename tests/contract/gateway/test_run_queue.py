"""The gauge of queued runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from contract.gateway.stores import Gateways
from gateway_records import new_run
from strata.gateway.runs.store.run_queue import RunQueue
from strata.shared.metric_names import RUNS_QUEUED
from strata.shared.telemetry import Telemetry


async def test_due_runs_that_have_not_started_are_counted(gateways: Gateways) -> None:
    telemetry = Telemetry()
    queue = RunQueue(gateways.worker, telemetry)
    await queue.measure()
    assert telemetry.total(RUNS_QUEUED) == 0
    # The first one starts, and two wait for its conversation.
    for _ in range(3):
        await gateways.first.accept(new_run())
    await gateways.first.accept(new_run(run_at=datetime.now(UTC) + timedelta(hours=1)))
    await queue.measure()
    assert telemetry.total(RUNS_QUEUED) == 2
