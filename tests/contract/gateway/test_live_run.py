"""The log of a run under way, on the real store."""

from __future__ import annotations

import asyncio

import pytest

from contract.gateway.stores import Gateways
from contract.gateway.test_run_store import new_run
from strata.api.common.v1.run_event_pb2 import RunEvent, RunStarted, StepStarted
from strata.gateway.runs import live
from strata.gateway.runs.domain import Fence
from strata.gateway.runs.live import LiveRun
from strata.gateway.runs.store import LeaseTerms, PostgresRunStore
from strata.shared.clock import SystemClock


class SlowToTell(PostgresRunStore):
    """A store whose answer to a redispatch, which is committed, takes its time."""

    def __init__(self, gateways: Gateways) -> None:
        super().__init__(gateways.database, gateways.worker, LeaseTerms("gateway-1"))
        self.committed, self.told = asyncio.Event(), asyncio.Event()

    async def redispatch(self, fence: Fence) -> Fence:
        following = await super().redispatch(fence)
        self.committed.set()
        await self.told.wait()
        return following


async def test_what_is_stored_while_a_run_is_dispatched_again_is_not_taken_for_another_gateways(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowToTell(gateways)
    accepted = await store.accept(new_run())
    assert accepted.dispatch is not None
    run = LiveRun(accepted.dispatch, "gateway-1", store, SystemClock())
    await run.append(RunEvent(run_started=RunStarted(attempt=1)))
    again = asyncio.create_task(run.redispatch())
    await store.committed.wait()
    # What the timer does, at the worst moment.
    flushing = asyncio.create_task(run.flush())
    await asyncio.sleep(0.1)
    store.told.set()
    await asyncio.gather(again, flushing)
    assert run.fence.attempt == 2
    monkeypatch.setattr(live, "_REPORT_DELAY_S", 600.0)
    await run.append(RunEvent(step_started=StepStarted(step_id="step-1", step=1)))
    await run.flush()
    page = await store.events(run.project_id, run.fence.run_id, 0)
    kinds = [RunEvent.FromString(each.payload).WhichOneof("event") for each in page.events]
    assert kinds == ["run_started", "step_started"]
    run.close()
