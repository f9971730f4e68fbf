"""Runs with a start time; on the real PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, WELL, asking, events, fence_of, new_run, taken
from strata.gateway.runs.domain.runs import OnBusy
from strata.gateway.runs.domain.states import RunState
from strata.protocol.errors import ResourceExhaustedError

SOON = datetime.now(UTC) + timedelta(hours=1)


async def make_ready(gateways: Gateways, run_id: str) -> None:
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute(
        "UPDATE gateway.runs SET run_at = now() WHERE id = $1 AND run_at > now()", run_id
    )
    await connection.close()


async def test_a_run_with_a_later_time_waits_for_it(gateways: Gateways) -> None:
    accepted = await gateways.first.accept(new_run(run_at=SOON))
    assert (accepted.run.state, accepted.dispatch) == (RunState.QUEUED, None)
    assert accepted.run.run_at == SOON
    assert await gateways.second.claim(10) == []
    await make_ready(gateways, accepted.run.id)
    assert await gateways.second.claim(10) == [(PROJECT, accepted.run.id)]


async def test_a_time_that_has_passed_is_now(gateways: Gateways) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    accepted = await gateways.first.accept(new_run(run_at=past))
    assert accepted.dispatch is not None
    assert accepted.run.run_at == accepted.run.create_time


async def test_a_delayed_run_does_not_block_other_runs_of_its_conversation(
    gateways: Gateways,
) -> None:
    later = await gateways.first.accept(new_run(run_at=SOON))
    first = await gateways.first.accept(new_run(on_busy=OnBusy.REJECT))
    assert first.dispatch is not None
    second = await gateways.first.accept(new_run())
    assert second.run.state is RunState.QUEUED
    following = await gateways.first.finish(
        fence_of(first.dispatch, "gateway-1"), WELL, events(1), take_next=False
    )
    assert following is None
    # The queued run is claimed although the delayed one has the smaller id.
    assert await gateways.second.claim(10) == [(PROJECT, second.run.id)]
    dispatch = await gateways.second.load(PROJECT, second.run.id)
    await make_ready(gateways, later.run.id)
    assert await gateways.second.claim(10) == []
    next_run = await gateways.second.finish(
        fence_of(dispatch, "gateway-2"), WELL, events(1), take_next=True
    )
    assert next_run is not None
    assert next_run.run.id == later.run.id


@pytest.mark.parametrize("take_next", [True, False])
async def test_end_of_a_run_does_not_start_runs_that_are_not_due(
    gateways: Gateways, take_next: bool
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.accept(new_run(run_at=SOON))
    assert await gateways.first.finish(fence, WELL, events(1), take_next=take_next) is None
    assert await gateways.second.claim(10) == []


async def test_a_later_run_is_cancelled_before_it_starts(gateways: Gateways) -> None:
    accepted = await gateways.first.accept(new_run(run_at=SOON))
    cancelled = await gateways.second.cancel(PROJECT, accepted.run.id, b"finished")
    assert cancelled.state is RunState.CANCELLED
    await make_ready(gateways, accepted.run.id)
    assert await gateways.second.claim(10) == []


async def test_an_approval_that_is_open_now_does_not_refuse_a_later_run(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking(600)
    await gateways.first.finish(fence, ending, events(1), take_next=False)
    accepted = await gateways.first.accept(new_run(run_at=SOON))
    assert accepted.run.state is RunState.QUEUED
    assert not (await gateways.first.approval(PROJECT, approval_id)).decided
    # When it is due it waits for the answer.
    await make_ready(gateways, accepted.run.id)
    assert await gateways.second.claim(10) == []


async def test_delayed_runs_and_open_runs_have_separate_quotas(gateways: Gateways) -> None:
    for number in range(20):
        await gateways.first.accept(new_run(f"later-{number}", run_at=SOON))
    with pytest.raises(ResourceExhaustedError) as error:
        await gateways.first.accept(new_run("later-20", run_at=SOON))
    assert error.value.metadata == {"quota": "delayed_runs", "limit": "20"}
    for number in range(20):
        await gateways.first.accept(new_run(f"now-{number}"))
    with pytest.raises(ResourceExhaustedError) as error:
        await gateways.first.accept(new_run("now-20"))
    assert error.value.metadata == {"quota": "open_runs", "limit": "20"}


async def test_delayed_runs_of_a_key_exclude_those_that_are_due(
    gateways: Gateways,
) -> None:
    mine, other = new_run(run_at=SOON), new_run("conversation-2", run_at=SOON)
    ready = new_run("conversation-3", run_at=SOON)
    other = replace(other, principal=replace(other.principal, name="key-2"))
    for new in (mine, other, ready):
        await gateways.first.accept(new)
    await make_ready(gateways, ready.id)
    assert await gateways.first.delayed_of_principal(PROJECT, "key-1") == [mine.id]
    assert await gateways.first.delayed_of_principal("project-2", "key-1") == []
