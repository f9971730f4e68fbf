"""Schedules of several gateways on one database; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
import functools
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from contract.gateway.stores import Gateways
from gateway_records import (
    PROJECT,
    TERMS,
    WELL,
    asking,
    events,
    fence_of,
    new_schedule,
    taken,
)
from plans import generic_plan_of
from strata.gateway.runs.domain.approvals import OnApproval
from strata.gateway.runs.domain.runs import RunEnding, RunFailure, RunFilter
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.gateway.schedules.domain import (
    OnOverlap,
    Schedule,
    ScheduleState,
    TickOutcome,
)
from strata.gateway.schedules.runner import ScheduleRunner
from strata.gateway.schedules.store import MAX_MISSED, PostgresScheduleStore
from strata.gateway.schedules.timing import Timing, TimingError
from strata.protocol.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)
from strata.shared.context import Caller, RequestContext, use
from strata.shared.db import sql
from strata.shared.stop_reasons import StopReason
from strata.shared.usage import Usage

EVERY_FIVE_MINUTES = Timing("*/5 * * * *")


def store_of(gateways: Gateways, runs: PostgresRunStore | None = None) -> PostgresScheduleStore:
    return PostgresScheduleStore(gateways.database, gateways.worker, runs or gateways.first, TERMS)


async def set_back(gateways: Gateways, schedule: Schedule, minutes: int) -> datetime:
    """Makes a schedule due, as if no gateway had checked it for some minutes."""
    connection = await asyncpg.connect(gateways.urls.admin_url)
    try:
        now = await connection.fetchval("SELECT now()")
        since = schedule.timing.next_after(now - timedelta(minutes=minutes))
        await connection.execute(
            "UPDATE gateway.schedules SET next_time = $1, update_time = $2 WHERE id = $3",
            since,
            now - timedelta(days=1),
            schedule.id,
        )
    finally:
        await connection.close()
    assert since is not None
    assert since <= now
    return since


async def runs_of(gateways: Gateways) -> list[str]:
    runs = await gateways.first.list(PROJECT, RunFilter(), before=None, limit=500)
    return [run.id for run in runs]


async def test_a_schedule_that_is_not_due_starts_nothing(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    assert schedule.state is ScheduleState.ACTIVE
    assert schedule.next_time is not None
    assert schedule.next_time > schedule.create_time
    assert await store.due(10) == []
    assert await store.fire(PROJECT, schedule.id) is None
    assert await runs_of(gateways) == []


async def test_of_many_gateways_one_starts_the_run_of_a_tick(gateways: Gateways) -> None:
    schedule = await store_of(gateways).create(PROJECT, new_schedule())
    tick = await set_back(gateways, schedule, 5)
    runners = [
        ScheduleRunner(store_of(gateways, runs), lambda: None)
        for runs in (gateways.first, gateways.second, gateways.short) * 3
    ]
    assert sum(await asyncio.gather(*(runner.start_due() for runner in runners))) == 1
    [run_id] = await runs_of(gateways)
    run = await gateways.first.get(PROJECT, run_id)
    assert (run.state, run.kind) == (RunState.QUEUED, "BACKGROUND")
    ticks = await store_of(gateways).ticks(PROJECT, schedule.id, before=None, limit=10)
    assert [(tick.tick_time, tick.outcome, tick.run_id) for tick in ticks] == [
        (tick, TickOutcome.STARTED, run_id)
    ]
    after = await store_of(gateways).get(PROJECT, schedule.id)
    assert (after.last_run_id, after.last_time) == (run_id, tick)
    assert after.next_time is not None
    assert after.next_time > tick
    # The tick is an ordinary run: any gateway claims it, with the principal of the schedule.
    assert await gateways.second.claim(10) == [(PROJECT, run_id)]
    dispatch = await gateways.second.load(PROJECT, run_id)
    assert (dispatch.principal, dispatch.payload) == (schedule.plan.principal, b"hello")


async def test_a_tick_stays_due_after_the_gateway_dies_in_its_transaction(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    await set_back(gateways, schedule, 5)
    accept_within = PostgresRunStore.accept_within

    async def dies(self: PostgresRunStore, *args: Any, **kwargs: Any) -> None:
        await accept_within(self, *args, **kwargs)
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(PostgresRunStore, "accept_within", dies)
        with pytest.raises(asyncio.CancelledError):
            await store.fire(PROJECT, schedule.id)
    assert await runs_of(gateways) == []
    assert await store.ticks(PROJECT, schedule.id, before=None, limit=10) == []
    assert await store.fire(PROJECT, schedule.id) is not None
    assert len(await runs_of(gateways)) == 1


async def test_after_an_outage_the_latest_tick_starts_a_run_and_earlier_ones_are_missed(
    gateways: Gateways,
) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule(timing=EVERY_FIVE_MINUTES))
    first = await set_back(gateways, schedule, 60)
    run_id = await store.fire(PROJECT, schedule.id)
    ticks = await store.ticks(PROJECT, schedule.id, before=None, limit=100)
    assert len(ticks) >= 12
    assert (ticks[0].run_id, ticks[0].outcome) == (run_id, TickOutcome.STARTED)
    assert {(tick.run_id, tick.outcome) for tick in ticks[1:]} == {("", TickOutcome.MISSED)}
    assert ticks[-1].tick_time == first
    assert await runs_of(gateways) == [run_id]


async def test_later_page_of_ticks_reads_no_newer_ticks(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule(timing=EVERY_FIVE_MINUTES))
    await set_back(gateways, schedule, 60)
    await store.fire(PROJECT, schedule.id)
    ticks = list(await store.ticks(PROJECT, schedule.id, before=None, limit=100))
    with gateways.database.statistics.record() as statements:
        older = await store.ticks(PROJECT, schedule.id, before=ticks[3].tick_time, limit=5)
    assert list(older) == ticks[4:9]
    (statement,) = (recorded for recorded in statements if "schedule_ticks" in recorded)
    with use(RequestContext(Caller("", PROJECT, "test"))):
        plan = await generic_plan_of(gateways.database, statement)
    assert re.search(r"Index Cond: .*tick_time < ", plan), plan
    assert "Filter: (tick_time" not in plan


async def test_after_a_long_outage_only_the_newest_ticks_are_recorded(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule(timing=EVERY_FIVE_MINUTES))
    await set_back(gateways, schedule, 60 * 24 * 20)
    assert await store.fire(PROJECT, schedule.id) is not None
    ticks = await store.ticks(PROJECT, schedule.id, before=None, limit=500)
    assert len(ticks) == MAX_MISSED + 1
    assert ticks[0].outcome is TickOutcome.STARTED


async def test_setting_the_clock_back_repeats_no_tick(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule(on_overlap=OnOverlap.ENQUEUE))
    await set_back(gateways, schedule, 5)
    assert await store.fire(PROJECT, schedule.id) is not None
    await set_back(gateways, schedule, 5)
    assert await store.fire(PROJECT, schedule.id) is None
    assert len(await runs_of(gateways)) == 1
    assert await store.due(10) == []


async def test_ticks_are_deleted_after_the_time_of_the_setting(gateways: Gateways) -> None:
    terms = replace(TERMS, history_days=10)
    store = PostgresScheduleStore(gateways.database, gateways.worker, gateways.first, terms)
    schedule = await store.create(PROJECT, new_schedule(timing=Timing("0 * * * *")))
    await set_back(gateways, schedule, 60 * 24 * 30)
    await store.fire(PROJECT, schedule.id)
    long_ago = (await store.ticks(PROJECT, schedule.id, before=None, limit=500))[-1].tick_time
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute(
        "UPDATE gateway.schedule_ticks SET tick_time = tick_time - interval '11 days',"
        " create_time = create_time - interval '11 days'"
    )
    await connection.close()
    await set_back(gateways, schedule, 60)
    await store.fire(PROJECT, schedule.id)
    ticks = await store.ticks(PROJECT, schedule.id, before=None, limit=500)
    assert min(tick.tick_time for tick in ticks) > long_ago


@pytest.mark.parametrize("on_overlap", OnOverlap)
async def test_while_a_run_is_active_the_next_tick_is_skipped_or_queued(
    gateways: Gateways, on_overlap: OnOverlap
) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule(on_overlap=on_overlap))
    await set_back(gateways, schedule, 20)
    first = await store.fire(PROJECT, schedule.id)
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute("DELETE FROM gateway.schedule_ticks")
    await connection.close()
    await set_back(gateways, schedule, 5)
    second = await store.fire(PROJECT, schedule.id)
    [tick] = await store.ticks(PROJECT, schedule.id, before=None, limit=10)
    if on_overlap is OnOverlap.SKIP:
        assert (second, tick.outcome, tick.reason) == (
            None,
            TickOutcome.SKIPPED,
            "PREVIOUS_RUN_OPEN",
        )
        assert await runs_of(gateways) == [first]
    else:
        assert tick.run_id == second
        # One run of a conversation at a time, in order.
        assert await gateways.first.claim(10) == [(PROJECT, first)]
        assert await gateways.first.claim(10) == []


@pytest.mark.parametrize("reason", [Reason.AGENT_NOT_FOUND, Reason.CONVERSATION_NOT_FOUND])
async def test_run_that_fails_because_its_agent_was_deleted_disables_the_schedule(
    gateways: Gateways, reason: Reason
) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    await set_back(gateways, schedule, 20)
    run_id = await store.fire(PROJECT, schedule.id)
    assert run_id is not None
    await gateways.first.claim(10)
    fence = fence_of(await gateways.first.load(PROJECT, run_id), "gateway-1")
    gone = RunEnding(
        StopReason.ERROR, RunFailure(reason.value, "gone", retryable=False), Usage(), 0
    )
    await gateways.first.finish(fence, gone, events(1), take_next=False)
    await set_back(gateways, schedule, 5)
    assert await store.fire(PROJECT, schedule.id) is None
    disabled = await store.get(PROJECT, schedule.id)
    assert (disabled.state, disabled.state_reason) == (ScheduleState.DISABLED, reason.value)
    assert disabled.next_time is None
    # After a resumption the earlier failures do not count.
    resumed = await store.resume(PROJECT, schedule.id, schedule.plan.principal)
    assert (resumed.state, resumed.state_reason) == (ScheduleState.ACTIVE, "")
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute("DELETE FROM gateway.schedule_ticks")
    await connection.execute(
        "UPDATE gateway.schedules SET next_time = next_time - interval '1 day'"
    )
    await connection.close()
    assert await store.fire(PROJECT, schedule.id) is not None


async def test_a_deleted_agent_disables_its_schedules_and_no_others(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    other = new_schedule("other")
    other = replace(other, plan=replace(other.plan, agent_id="agent-2"))
    await store.create(PROJECT, other)
    await store.disable_of_agent(PROJECT, "agent-1", "AGENT_NOT_FOUND")
    schedules = await store.list(PROJECT, agent_id="", name="", before=None, limit=10)
    assert {schedule.name: (schedule.state, schedule.state_reason) for schedule in schedules} == {
        "morning": (ScheduleState.DISABLED, "AGENT_NOT_FOUND"),
        "other": (ScheduleState.ACTIVE, ""),
    }
    assert await store.fire(PROJECT, schedule.id) is None


@pytest.mark.parametrize("on_approval", [OnApproval.REJECT, OnApproval.DENY])
async def test_a_pending_approval_skips_the_tick_or_is_denied(
    gateways: Gateways, on_approval: OnApproval
) -> None:
    store = store_of(gateways)
    fence = await taken(gateways.first, "gateway-1")
    approval_id, ending = asking(600)
    await gateways.first.finish(fence, ending, events(1), take_next=False)
    schedule = await store.create(PROJECT, new_schedule(on_approval=on_approval))
    await set_back(gateways, schedule, 5)
    run_id = await store.fire(PROJECT, schedule.id)
    [tick] = await store.ticks(PROJECT, schedule.id, before=None, limit=10)
    if on_approval is OnApproval.REJECT:
        assert (run_id, tick.reason) == (None, "APPROVAL_PENDING")
    else:
        assert tick.run_id == run_id
    decided = (await gateways.first.approval(PROJECT, approval_id)).decided
    assert decided is (on_approval is OnApproval.DENY)


async def test_a_tick_over_the_quota_of_open_runs_starts_when_a_run_ends(
    gateways: Gateways,
) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    fences = [await taken(gateways.first, "gateway-1", f"conversation-{n}") for n in range(2, 22)]
    await set_back(gateways, schedule, 5)
    with pytest.raises(ResourceExhaustedError):
        await store.fire(PROJECT, schedule.id)
    assert await ScheduleRunner(store, lambda: None).start_due() == 0
    await gateways.first.finish(fences[0], WELL, events(1), take_next=False)
    assert await ScheduleRunner(store, lambda: None).start_due() == 1


async def copied(gateways: Gateways, schedule: Schedule, project: str, count: int) -> None:
    """Makes copies of a schedule in a project that have been due for a minute."""
    async with gateways.database.transaction(project_id=project) as connection:
        await connection.execute(
            sql(
                "INSERT INTO gateway.schedules (project_id, id, name, request_hash,"
                " organization_id, principal, scopes, agent_id, conversation_id, payload,"
                " payload_hash, max_steps, on_approval, on_overlap, cron, time_zone, state,"
                " next_time) SELECT :project, :project || '-' || n, n::text, '', 'organization-1',"
                " 'key', '{}', 'agent-1', :project || '-' || n, '', '', 0, :on_approval,"
                " :on_overlap, :cron, 'UTC', 'ACTIVE', now() - interval '1 minute'"
                " FROM generate_series(1, CAST(:count AS int)) n"
            ),
            {
                "project": project,
                "count": count,
                "cron": schedule.timing.cron,
                "on_approval": schedule.plan.on_approval.value,
                "on_overlap": schedule.plan.on_overlap.value,
            },
        )


async def test_due_schedules_are_started_for_the_projects_in_turn(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.gateway.schedules.runner._BATCH", 2)
    store, processed = store_of(gateways), []
    schedule = await store.create(PROJECT, new_schedule())
    for project, count in (("project-a", 4), ("project-b", 2), ("project-c", 1)):
        await copied(gateways, schedule, project, count)
    fire = PostgresScheduleStore.fire

    async def recorded(self: PostgresScheduleStore, project: str, schedule_id: str) -> str | None:
        processed.append(schedule_id)
        return None if schedule_id == "project-b-1" else await fire(self, project, schedule_id)

    monkeypatch.setattr(PostgresScheduleStore, "fire", recorded)
    assert await ScheduleRunner(store, lambda: None).start_due() == 6
    assert processed == [
        *("project-a-1", "project-b-1", "project-b-2", "project-c-1"),
        *("project-a-2", "project-a-3", "project-a-4"),
    ]
    assert await ScheduleRunner(store, lambda: None).start_due() == 0
    assert processed[7:] == ["project-b-1"], "it is tried once in a pass"


async def test_a_schedule_whose_time_zone_is_unknown_is_disabled(
    gateways: Gateways,
) -> None:
    """Another machine, with another version of tzdata, may serve the database."""
    store = store_of(gateways)
    zoned, other = [
        await store.create(PROJECT, new_schedule(name=name, timing=EVERY_FIVE_MINUTES))
        for name in ("zoned", "other")
    ]
    for schedule in (zoned, other):
        await set_back(gateways, schedule, 30)
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute(
        "UPDATE gateway.schedules SET time_zone = 'Mars/Olympus' WHERE id = $1", zoned.id
    )
    await connection.close()
    assert await ScheduleRunner(store, lambda: None).start_due() == 1
    disabled = await store.get(PROJECT, zoned.id)
    assert (disabled.state, disabled.state_reason) == (ScheduleState.DISABLED, "TIME_ZONE_UNKNOWN")
    assert disabled.next_time is None
    assert (await store.get(PROJECT, other.id)).last_run_id
    with pytest.raises(FailedPreconditionError) as raised:
        await store.resume(PROJECT, zoned.id, zoned.plan.principal)
    assert raised.value.reason is Reason.TIME_ZONE_UNKNOWN
    assert "Mars/Olympus" in raised.value.message
    known = Timing("*/5 * * * *", "Europe/Berlin")
    await store.update(PROJECT, zoned.id, name="zoned", plan=zoned.plan, timing=known)
    resumed = await store.resume(PROJECT, zoned.id, zoned.plan.principal)
    assert (resumed.state, resumed.state_reason) == (ScheduleState.ACTIVE, "")


async def test_a_schedule_for_one_time_is_finished_after_it(gateways: Gateways) -> None:
    store = store_of(gateways)
    start = datetime.now(UTC) + timedelta(hours=1)
    schedule = await store.create(PROJECT, new_schedule(timing=Timing(start_time=start)))
    assert schedule.next_time == start
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute(
        "UPDATE gateway.schedules SET start_time = now() - interval '1 hour',"
        " next_time = now() - interval '1 hour'"
    )
    await connection.close()
    assert await store.fire(PROJECT, schedule.id) is not None
    assert (await store.get(PROJECT, schedule.id)).state is ScheduleState.FINISHED
    with pytest.raises(FailedPreconditionError) as raised:
        await store.resume(PROJECT, schedule.id, schedule.plan.principal)
    assert raised.value.reason is Reason.SCHEDULE_FINISHED
    # With a new time the schedule is active again.
    finished = await store.get(PROJECT, schedule.id)
    again = await store.update(
        PROJECT, schedule.id, name="again", plan=finished.plan, timing=Timing("0 9 * * *")
    )
    assert (again.state, again.name) == (ScheduleState.ACTIVE, "again")


async def test_a_single_time_that_passes_during_a_pause_runs_at_the_resumption(
    gateways: Gateways,
) -> None:
    store = store_of(gateways)
    start = datetime.now(UTC) + timedelta(hours=1)
    schedule = await store.create(PROJECT, new_schedule(timing=Timing(start_time=start)))
    await store.pause(PROJECT, schedule.id)
    connection = await asyncpg.connect(gateways.urls.admin_url)
    await connection.execute("UPDATE gateway.schedules SET start_time = now() - interval '1 hour'")
    await connection.close()
    assert await store.fire(PROJECT, schedule.id) is None
    await store.resume(PROJECT, schedule.id, schedule.plan.principal)
    assert await store.fire(PROJECT, schedule.id) is not None


async def test_a_resumed_schedule_does_not_run_the_missed_ticks(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    await set_back(gateways, schedule, 30)
    paused = await store.pause(PROJECT, schedule.id)
    assert (paused.state, paused.next_time) == (ScheduleState.PAUSED, None)
    assert await store.due(10) == []
    resumed = await store.resume(PROJECT, schedule.id, schedule.plan.principal)
    assert resumed.next_time is not None
    assert resumed.next_time > resumed.update_time
    assert await store.ticks(PROJECT, schedule.id, before=None, limit=10) == []


async def test_a_repeated_request_id_returns_the_first_schedule(gateways: Gateways) -> None:
    store = store_of(gateways)
    first = await store.create(PROJECT, new_schedule(request_id="r1"))
    assert (await store.create(PROJECT, new_schedule(request_id="r1"))).id == first.id
    with pytest.raises(AlreadyExistsError) as raised:
        await store.create(PROJECT, new_schedule("evening", request_id="r1"))
    assert raised.value.reason is Reason.REQUEST_ID_REUSED


async def test_names_and_numbers_of_schedules_are_bounded_in_a_project(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    with pytest.raises(AlreadyExistsError) as raised:
        await store.create(PROJECT, new_schedule())
    assert raised.value.reason is Reason.NAME_TAKEN
    results = await asyncio.gather(
        *(store.create(PROJECT, new_schedule(f"n{n}")) for n in range(6)), return_exceptions=True
    )
    assert sum(isinstance(result, Schedule) for result in results) == 2
    assert sum(isinstance(result, ResourceExhaustedError) for result in results) == 4
    [other, _] = [result for result in results if isinstance(result, Schedule)]
    with pytest.raises(AlreadyExistsError):
        await store.update(
            PROJECT, schedule.id, name=other.name, plan=schedule.plan, timing=schedule.timing
        )
    await store.delete(PROJECT, schedule.id)
    resume = functools.partial(store.resume, principal=schedule.plan.principal)
    for call in (store.get, store.delete, store.pause, resume):
        with pytest.raises(NotFoundError) as gone:
            await call(PROJECT, schedule.id)
        assert gone.value.reason is Reason.SCHEDULE_NOT_FOUND


async def test_another_project_sees_nothing_of_a_schedule(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    await set_back(gateways, schedule, 5)
    assert await store.fire("project-2", schedule.id) is None
    with pytest.raises(NotFoundError):
        await store.ticks("project-2", schedule.id, before=None, limit=10)
    assert await store.list("project-2", agent_id="", name="", before=None, limit=10) == []


async def test_a_failing_schedule_does_not_block_others(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(gateways)
    broken = await store.create(PROJECT, new_schedule("broken"))
    sound = await store.create(PROJECT, new_schedule("sound"))
    await set_back(gateways, broken, 60 * 24 * 3)
    await set_back(gateways, sound, 5)
    due = Timing.due

    def failing(self: Timing, since: datetime, now: datetime, most: int) -> Any:
        if now - since > timedelta(days=1):
            raise RuntimeError("a defect")
        return due(self, since, now, most)

    monkeypatch.setattr(Timing, "due", failing)
    assert await ScheduleRunner(store, lambda: None).start_due() == 1


async def test_new_times_are_checked_against_the_clock_of_the_database(gateways: Gateways) -> None:
    store = store_of(gateways)
    schedule = await store.create(PROJECT, new_schedule())
    past = datetime.now(UTC) - timedelta(minutes=1)
    for timing in (Timing(start_time=past), Timing("* * * *")):
        with pytest.raises(TimingError):
            await store.update(PROJECT, schedule.id, name="x", plan=schedule.plan, timing=timing)
        with pytest.raises(TimingError):
            await store.create(PROJECT, new_schedule("x", timing=timing))
    assert await store.get(PROJECT, schedule.id) == schedule
