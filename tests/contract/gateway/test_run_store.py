"""Contract of `RunStore`; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, WELL, events, fence_of, new_run, taken
from sql_queries import execute
from strata.gateway.runs.domain.quotas import MAX_RUNS_OF_GROUP_RUN
from strata.gateway.runs.domain.runs import (
    Dispatch,
    LeaseLostError,
    NewRun,
    OnBusy,
    RunEnding,
    RunFailure,
    RunFilter,
    UsageSum,
)
from strata.gateway.runs.domain.states import RunState
from strata.gateway.runs.store.base import LeaseTerms
from strata.gateway.runs.store.runs import PostgresRunStore
from strata.protocol.errors import (
    AbortedError,
    AlreadyExistsError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)
from strata.shared.db import sql
from strata.shared.ids import new_id
from strata.shared.stop_reasons import StopReason
from strata.shared.time_buckets import bucket_starts
from strata.shared.usage import Usage


async def test_a_run_for_a_free_conversation_starts_immediately(gateways: Gateways) -> None:
    new = new_run(max_steps=7)
    accepted = await gateways.first.accept(new)
    dispatch = accepted.dispatch
    assert dispatch is not None
    assert accepted.run.state is RunState.RUNNING
    assert (dispatch.payload, dispatch.max_steps) == (b"hello", 7)
    assert dispatch.principal == new.principal
    assert dispatch.run.attempt == 1
    assert 800 < dispatch.remaining_s < 880
    assert await gateways.first.get(PROJECT, new.id) == accepted.run


async def test_accepting_a_run_is_one_statement(gateways: Gateways) -> None:
    statistics = gateways.database.statistics
    await gateways.first.accept(new_run())
    before = statistics.round_trips
    await gateways.first.accept(new_run("conversation-2"))
    assert statistics.round_trips - before == 1


_ROWS_READ = sql("""
    SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables
     WHERE schemaname = 'gateway' AND relname = 'runs'
""")


async def test_a_run_reads_no_other_runs_of_its_project_before_statistics_exist(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL keeps the plans that it makes while the table is new."""
    rows: list[int] = []

    async def counted(statement: Any, values: Any, *, project_id: str) -> Any:
        async with gateways.database.transaction(
            project_id=project_id, generic_plan=True
        ) as connection:
            before = (await connection.execute(_ROWS_READ)).scalar_one()
            result = await connection.execute(statement, values)
            rows.append((await connection.execute(_ROWS_READ)).scalar_one() - before)
            return result

    monkeypatch.setattr(gateways.database, "execute", counted)
    for number in range(30):
        fence = await taken(gateways.first, "gateway-1", f"conversation-{number}")
        await gateways.first.finish(fence, WELL, events(1), take_next=True)
    assert max(rows[-10:]) < 5, rows


async def test_one_run_is_active_and_the_others_are_queued_in_order(
    gateways: Gateways,
) -> None:
    first = await taken(gateways.first, "gateway-1")
    waiting = [await gateways.second.accept(new_run()) for _ in range(3)]
    assert [accepted.run.state for accepted in waiting] == [RunState.QUEUED] * 3
    assert all(accepted.dispatch is None for accepted in waiting)
    assert await gateways.second.claim(10) == []

    order = []
    fence = first
    for _ in range(3):
        following = await gateways.first.finish(fence, WELL, events(1), take_next=True)
        assert following is not None
        order.append(following.run.id)
        assert following.run.attempt == 1
        fence = fence_of(following, "gateway-1")
    assert order == [accepted.run.id for accepted in waiting]
    assert await gateways.first.finish(fence, WELL, events(1), take_next=True) is None


async def test_messages_are_queued_in_order_whatever_the_clocks_of_the_gateways(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    # The clock of a gateway makes the ids: here the later run has the clock that is behind.
    later, earlier = new_run(), new_run()
    for new in (earlier, later):
        assert (await gateways.second.accept(new)).run.state is RunState.QUEUED
    following = await gateways.first.finish(fence, WELL, events(1), take_next=True)
    assert following is not None
    assert following.run.id == earlier.id

    await gateways.first.accept(newest := new_run())
    fence = fence_of(following, "gateway-1")
    assert await gateways.first.finish(fence, WELL, events(1), take_next=False) is None
    assert await gateways.second.claim(10) == [(PROJECT, later.id)]
    assert await gateways.second.claim(10) == []
    assert (await gateways.second.get(PROJECT, newest.id)).state is RunState.QUEUED


async def test_concurrent_messages_start_one_run(
    gateways: Gateways,
) -> None:
    stores = [gateways.first, gateways.second]
    accepted = await asyncio.gather(*(stores[n % 2].accept(new_run()) for n in range(12)))
    states = [result.run.state for result in accepted]
    assert states.count(RunState.RUNNING) == 1
    assert states.count(RunState.QUEUED) == 11


async def test_other_conversations_run_in_parallel(gateways: Gateways) -> None:
    accepted = await asyncio.gather(
        *(gateways.first.accept(new_run(f"conversation-{n}")) for n in range(5))
    )
    assert all(result.dispatch is not None for result in accepted)


async def test_a_repeated_request_id_returns_the_first_run(gateways: Gateways) -> None:
    first = await gateways.first.accept(new_run(request_id="r-1"))
    again = await gateways.second.accept(new_run(request_id="r-1"))
    assert again.run.id == first.run.id
    assert again.dispatch is None
    with pytest.raises(AlreadyExistsError) as raised:
        await gateways.first.accept(new_run(request_id="r-1", payload_hash=b"other"))
    assert raised.value.reason is Reason.REQUEST_ID_REUSED
    other_tenant = await gateways.first.accept(new_run(project="project-2", request_id="r-1"))
    assert other_tenant.run.id != first.run.id


async def test_concurrent_calls_with_one_request_id_make_one_run(gateways: Gateways) -> None:
    accepted = await asyncio.gather(
        *(gateways.first.accept(new_run(request_id="same")) for _ in range(8))
    )
    assert len({result.run.id for result in accepted}) == 1
    assert sum(result.dispatch is not None for result in accepted) == 1


async def test_reject_names_the_active_run_and_stores_nothing(gateways: Gateways) -> None:
    first = await taken(gateways.first, "gateway-1")
    refused = new_run(on_busy=OnBusy.REJECT)
    with pytest.raises(AbortedError) as raised:
        await gateways.first.accept(refused)
    assert raised.value.reason is Reason.CONVERSATION_BUSY
    assert raised.value.metadata["active_run_id"] == first.run_id
    with pytest.raises(NotFoundError):
        await gateways.first.get(PROJECT, refused.id)
    await gateways.first.finish(first, WELL, events(1), take_next=True)
    assert (await gateways.first.accept(refused)).dispatch is not None


async def test_interrupt_asks_the_active_run_to_stop_and_waits_for_it(gateways: Gateways) -> None:
    first = await taken(gateways.first, "gateway-1")
    accepted = await gateways.second.accept(new_run(on_busy=OnBusy.INTERRUPT))
    assert accepted.interrupted_run_id == first.run_id
    assert accepted.run.state is RunState.QUEUED
    assert (await gateways.first.get(PROJECT, first.run_id)).state is RunState.CANCELLING
    [held] = await gateways.first.renew([first.run_id])
    assert held.cancelling
    cancelled = RunEnding(StopReason.CANCELLED, None, Usage(), 0)
    following = await gateways.first.finish(first, cancelled, events(1), take_next=True)
    assert following is not None
    assert following.run.id == accepted.run.id


async def test_a_project_has_a_limit_of_open_runs(gateways: Gateways) -> None:
    for number in range(20):
        await gateways.first.accept(new_run(f"conversation-{number}"))
    with pytest.raises(ResourceExhaustedError) as raised:
        await gateways.first.accept(new_run("conversation-x"))
    assert raised.value.reason is Reason.QUOTA_EXCEEDED
    assert raised.value.retry_after is not None
    assert (await gateways.first.accept(new_run("conversation-x", "project-2"))).dispatch


async def test_runs_within_the_run_of_a_group_have_a_limit_of_their_own(
    gateways: Gateways,
) -> None:
    def of_group(conversation: str, group_run: str) -> NewRun:
        return replace(new_run(conversation), group_run_id=group_run)

    for number in range(MAX_RUNS_OF_GROUP_RUN):
        await gateways.first.accept(of_group(f"conversation-{number}", "run-group-1"))
    with pytest.raises(ResourceExhaustedError) as raised:
        await gateways.first.accept(of_group("conversation-x", "run-group-1"))
    assert raised.value.metadata == {"quota": "group_runs", "limit": str(MAX_RUNS_OF_GROUP_RUN)}
    # The limit reduces neither the quota of other groups nor the open runs of the project.
    assert (await gateways.first.accept(of_group("conversation-y", "run-group-2"))).dispatch
    assert (await gateways.first.accept(new_run("conversation-z"))).dispatch


async def test_events_are_read_in_order_from_any_gateway(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.append(fence, events(1, 2))
    await gateways.first.append(fence, events(3))
    page = await gateways.second.events(PROJECT, fence.run_id, 1)
    assert [event.sequence for event in page.events] == [2, 3]
    assert page.events[0].payload == b"event 2"
    assert (page.state, page.last_sequence) == (RunState.RUNNING, 3)
    page = await gateways.second.events(PROJECT, fence.run_id, 0, limit=2)
    assert [event.sequence for event in page.events] == [1, 2]


async def test_the_end_of_a_run_is_stored_in_one_statement(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    failure = RunFailure("MODEL_UNAVAILABLE", "The provider is down.", True)
    used = Usage(1, 2, 4, 5, 6, True)
    ending = RunEnding(StopReason.LLM_API_ERROR, failure, used, 3, taint=("WEB", "MCP"))
    statistics = gateways.database.statistics
    before = statistics.round_trips
    await gateways.first.finish(fence, ending, events(1, 2), take_next=True)
    assert statistics.round_trips - before == 1
    run = await gateways.first.get(PROJECT, fence.run_id)
    assert run.state is RunState.FAILED
    assert run.failure == failure
    assert run.usage == ending.usage
    assert run.taint == ("WEB", "MCP")
    assert (run.stop_reason, run.step_count, run.last_sequence) == (
        StopReason.LLM_API_ERROR,
        3,
        2,
    )
    assert run.finish_time is not None


async def test_a_failure_with_a_character_that_cannot_be_stored_ends_the_run(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.first, "gateway-1")
    failure = RunFailure("MODEL_REQUEST_REFUSED", "I will not\0 do this.", False)
    ending = RunEnding(StopReason.LLM_API_ERROR, failure, Usage(), 1, reads_transcript=True)
    await gateways.first.finish(fence, ending, events(1), take_next=True)
    run = await gateways.first.get(PROJECT, fence.run_id)
    assert run.failure == replace(failure, message="I will not do this.")


async def test_payload_is_deleted_when_the_run_ends(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    queued = await gateways.first.accept(new_run())
    await gateways.first.cancel(PROJECT, queued.run.id, b"finished")
    left = sql("SELECT id, length(payload) FROM gateway.runs ORDER BY id")
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        rows = await connection.execute(left)
        assert set(map(tuple, rows)) == {(fence.run_id, 5), (queued.run.id, 0)}
    await gateways.first.finish(fence, WELL, events(1), take_next=True)
    async with gateways.database.transaction(project_id=PROJECT) as connection:
        rows = await connection.execute(left)
        assert set(map(tuple, rows)) == {(fence.run_id, 0), (queued.run.id, 0)}


async def test_a_stale_attempt_writes_nothing(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    newer = await gateways.first.redispatch(fence)
    assert newer.attempt == 2
    for stale in (fence, replace(newer, owner="gateway-2")):
        with pytest.raises(LeaseLostError):
            await gateways.first.append(stale, events(1))
        with pytest.raises(LeaseLostError):
            await gateways.first.redispatch(stale)
        with pytest.raises(LeaseLostError):
            await gateways.first.finish(stale, WELL, events(1), take_next=True)
    page = await gateways.first.events(PROJECT, fence.run_id, 0)
    assert (page.state, list(page.events)) == (RunState.RUNNING, [])
    await gateways.first.finish(newer, WELL, events(1), take_next=True)
    with pytest.raises(LeaseLostError):
        await gateways.first.finish(newer, WELL, events(2), take_next=True)


async def test_an_expired_lease_is_taken_over_and_its_holder_cannot_write(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.short, "gateway-3")
    assert await gateways.short.renew([fence.run_id])
    await asyncio.sleep(0.1)
    assert await gateways.second.claim(10) == [(PROJECT, fence.run_id)]
    assert await gateways.second.claim(10) == []
    dispatch = await gateways.second.load(PROJECT, fence.run_id)
    assert dispatch.run.attempt == 2
    assert dispatch.payload == b"hello"
    with pytest.raises(LeaseLostError):
        await gateways.short.append(fence, events(1))
    assert await gateways.short.renew([fence.run_id]) == []
    with pytest.raises(LeaseLostError):
        await gateways.short.load(PROJECT, fence.run_id)


async def test_a_renewed_lease_is_not_taken_over(gateways: Gateways) -> None:
    kept = await taken(gateways.short, "gateway-3")
    dropped = await taken(gateways.short, "gateway-3", "conversation-2")
    long = PostgresRunStore(gateways.database, gateways.worker, LeaseTerms("gateway-3"))
    assert [lease.run_id for lease in await long.renew([kept.run_id])] == [kept.run_id]
    await asyncio.sleep(0.1)
    assert await gateways.second.claim(10) == [(PROJECT, dropped.run_id)]


async def test_a_cancelling_run_that_is_taken_over_stays_cancelling(gateways: Gateways) -> None:
    fence = await taken(gateways.short, "gateway-3")
    await gateways.first.cancel(PROJECT, fence.run_id, b"")
    await asyncio.sleep(0.1)
    await gateways.second.claim(10)
    dispatch = await gateways.second.load(PROJECT, fence.run_id)
    assert dispatch.run.state is RunState.CANCELLING


async def test_released_runs_can_be_claimed_immediately(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    assert await gateways.first.release() == 1
    assert await gateways.second.claim(10) == [(PROJECT, fence.run_id)]


async def test_a_single_gateway_releases_the_runs_of_others_and_keeps_its_own(
    gateways: Gateways,
) -> None:
    dead = await taken(gateways.first, "gateway-1", "conversation-dead")
    await taken(gateways.second, "gateway-2", "conversation-mine")
    assert await gateways.second.release_others() == 1
    assert await gateways.second.claim(10) == [(PROJECT, dead.run_id)]
    assert await gateways.second.release_others() == 0


async def test_a_draining_gateway_does_not_start_the_next_run(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    waiting = await gateways.first.accept(new_run())
    assert await gateways.first.finish(fence, WELL, events(1), take_next=False) is None
    assert await gateways.second.claim(10) == [(PROJECT, waiting.run.id)]
    dispatch = await gateways.second.load(PROJECT, waiting.run.id)
    assert (dispatch.run.state, dispatch.run.attempt) == (RunState.RUNNING, 1)
    assert dispatch.run.start_time is not None


async def test_two_gateways_never_claim_the_same_run(gateways: Gateways) -> None:
    fences = [await taken(gateways.short, "gateway-3", f"conversation-{n}") for n in range(10)]
    await asyncio.sleep(0.1)
    claims = await asyncio.gather(
        *(store.claim(3) for store in (gateways.first, gateways.second) * 3)
    )
    claimed = [run_id for some in claims for _, run_id in some]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) <= {fence.run_id for fence in fences}


async def test_cancelling_a_queued_run_ends_it_with_its_event(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    waiting = await gateways.first.accept(new_run())
    run = await gateways.second.cancel(PROJECT, waiting.run.id, b"cancelled")
    assert (run.state, run.stop_reason) == (RunState.CANCELLED, StopReason.CANCELLED)
    page = await gateways.first.events(PROJECT, waiting.run.id, 0)
    assert [(event.sequence, event.payload) for event in page.events] == [(1, b"cancelled")]
    assert await gateways.first.finish(fence, WELL, events(1), take_next=True) is None
    again = await gateways.second.cancel(PROJECT, waiting.run.id, b"cancelled")
    assert again == run
    over = await gateways.second.cancel(PROJECT, fence.run_id, b"cancelled")
    assert over.state is RunState.COMPLETED
    with pytest.raises(NotFoundError):
        await gateways.first.cancel(PROJECT, new_id("run"), b"")


async def test_cancelling_a_running_run_marks_it_and_keeps_its_events(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.append(fence, events(1, 2))
    run = await gateways.second.cancel(PROJECT, fence.run_id, b"cancelled")
    assert (run.state, run.last_sequence) == (RunState.CANCELLING, 2)
    assert run.finish_time is None
    await gateways.first.append(fence, events(3))
    await gateways.first.finish(fence, WELL, events(4), take_next=True)
    assert (await gateways.first.get(PROJECT, fence.run_id)).state is RunState.COMPLETED


async def test_runs_are_listed_newest_first_by_filter_and_page(gateways: Gateways) -> None:
    made = [await gateways.first.accept(new_run()) for _ in range(4)]
    await gateways.first.accept(new_run("conversation-2"))
    ids = [accepted.run.id for accepted in made][::-1]
    which = RunFilter("agent-1", "conversation-1")
    runs = await gateways.second.list(PROJECT, which, before=None, limit=3)
    assert [run.id for run in runs] == ids[:3]
    runs = await gateways.second.list(PROJECT, which, before=ids[2], limit=3)
    assert [run.id for run in runs] == ids[3:]
    queued = RunFilter(states=frozenset({RunState.QUEUED}))
    assert len(await gateways.second.list(PROJECT, queued, before=None, limit=50)) == 3
    assert await gateways.second.list("project-2", RunFilter(), before=None, limit=50) == []


async def test_another_project_sees_no_run(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    for call in (
        gateways.first.get("project-2", fence.run_id),
        gateways.first.events("project-2", fence.run_id, 0),
        gateways.first.cancel("project-2", fence.run_id, b""),
    ):
        with pytest.raises(NotFoundError) as raised:
            await call
        assert raised.value.reason is Reason.RUN_NOT_FOUND
    with pytest.raises(LeaseLostError):
        await gateways.first.load("project-2", fence.run_id)
    with pytest.raises(LeaseLostError):
        await gateways.first.append(replace(fence, project_id="project-2"), events(1))


async def test_usage_is_summed_over_ended_runs_of_the_range(gateways: Gateways) -> None:
    now = datetime.now(UTC)
    for conversation in ("conversation-1", "conversation-2"):
        fence = await taken(gateways.first, "gateway-1", conversation)
        await gateways.first.finish(fence, WELL, events(1), take_next=True)
    await taken(gateways.first, "gateway-1", "conversation-3")
    hour = timedelta(hours=1)
    total = await gateways.first.usage(PROJECT, now - hour, now + hour, "")
    assert (total.run_count, total.step_count, total.usage.prompt_tokens) == (2, 4, 20)
    assert (await gateways.first.usage(PROJECT, now + hour, now + 2 * hour, "")).run_count == 0
    assert (await gateways.first.usage(PROJECT, now - hour, now + hour, "agent-2")).run_count == 0
    assert (await gateways.first.usage("project-2", now - hour, now + hour, "")).run_count == 0


async def test_series_of_usage_is_the_usage_of_each_bucket(gateways: Gateways) -> None:
    origin = datetime(2026, 3, 28, 22, tzinfo=UTC)
    for number in range(12):
        # Every third run ends at the start of a bucket.
        end = origin + timedelta(hours=5 * number, seconds=number % 3)
        fence = await taken(gateways.first, "gateway-1", f"conversation-{number}")
        await gateways.first.finish(fence, WELL, events(1), take_next=True)
        await execute(
            gateways.urls.admin_url,
            "UPDATE gateway.runs SET finish_time = $1, step_count = $2 WHERE id = $3",
            *(end, number + 1, fence.run_id),
        )
    statistics = gateways.database.statistics
    chooser = random.Random(7)
    counts = []
    for _ in range(25):
        start = origin + timedelta(minutes=chooser.randrange(-300, 4_000))
        end = start + timedelta(minutes=chooser.randrange(1, 4_000))
        length = timedelta(minutes=chooser.choice([60, 300, 1_440, 10_080]))
        starts = bucket_starts(start, end, length)
        before = statistics.round_trips
        series = await gateways.first.usage_series(PROJECT, starts, end, "")
        assert statistics.round_trips - before == 1
        total = await gateways.first.usage(PROJECT, start, end, "")
        assert sum(series, UsageSum()) == total
        chosen = chooser.randrange(len(starts))
        bucket_end = [*starts, end][chosen + 1]
        of_bucket = await gateways.first.usage(PROJECT, starts[chosen], bucket_end, "")
        assert series[chosen] == of_bucket
        counts.append(total.run_count)
    assert len(set(counts)) > 5, "the ranges differ"
    for project, agent_id in ((PROJECT, "agent-2"), ("project-2", "")):
        empty = await gateways.first.usage_series(project, [origin], end, agent_id)
        assert empty == [UsageSum()]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT payload FROM gateway.runs",
        "SELECT * FROM gateway.run_events",
        "SELECT name FROM gateway.api_keys",
        "UPDATE gateway.api_keys SET revoke_time = NULL",
        "UPDATE gateway.runs SET agent_id = 'x'",
        "DELETE FROM gateway.runs",
        "INSERT INTO gateway.projects VALUES ('a', 'b', 'c')",
    ],
)
async def test_the_worker_role_can_access_only_leases_and_hashes(
    gateways: Gateways, statement: str
) -> None:
    connection = await asyncpg.connect(gateways.urls.worker_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_the_service_role_sees_nothing_without_a_tenant(gateways: Gateways) -> None:
    await taken(gateways.first, "gateway-1")
    connection = await asyncpg.connect(gateways.urls.service_url)
    try:
        for table in ("runs", "run_events", "projects", "api_keys", "organizations"):
            assert await connection.fetchval(f"SELECT count(*) FROM gateway.{table}") == 0
    finally:
        await connection.close()


async def test_run_that_is_taken_over_is_followed_at_its_new_holder(gateways: Gateways) -> None:
    taking = PostgresRunStore(
        gateways.database, gateways.worker, LeaseTerms("gateway-4", address="host-4:7600")
    )
    accepted = await gateways.short.accept(new_run())
    await asyncio.sleep(0.1)
    assert await taking.claim(10) == [(PROJECT, accepted.run.id)]
    [(_, mark)] = await taking.marks([(PROJECT, accepted.run.id)])
    assert mark.address == "host-4:7600"


async def test_lost_holders_are_counted_until_the_run_makes_progress(
    gateways: Gateways,
) -> None:
    run_id = (await gateways.short.accept(new_run())).run.id

    async def taken_again(store: PostgresRunStore) -> Dispatch:
        await asyncio.sleep(0.1)
        assert await store.claim(10) == [(PROJECT, run_id)]
        return await store.load(PROJECT, run_id)

    assert (await taken_again(gateways.short)).lost_holders == 1
    held = await taken_again(gateways.first)
    assert held.lost_holders == 2
    # A gateway that releases its runs does not count as a lost holder.
    assert await gateways.first.release() == 1
    held = await taken_again(gateways.short)
    assert held.lost_holders == 2
    fence = fence_of(held, "gateway-3")
    await gateways.short.append(fence, events(1))
    assert (await gateways.short.load(PROJECT, run_id)).lost_holders == 2
    await gateways.short.append(fence, events(2), progressed=True)
    assert (await gateways.short.load(PROJECT, run_id)).lost_holders == 0


async def test_dispatch_has_the_age_of_the_run(gateways: Gateways) -> None:
    accepted = await gateways.short.accept(new_run())
    assert accepted.dispatch is not None
    assert accepted.dispatch.age_s == 0.0
    again = await gateways.short.load(PROJECT, accepted.run.id)
    assert again.age_s > 0.0
    # The clock of the database sets both the age and the times of the row.
    fence = fence_of(again, "gateway-3")
    await gateways.short.finish(fence, WELL, events(1), take_next=False)
    ended = await gateways.short.get(PROJECT, accepted.run.id)
    assert ended.finish_time is not None
    assert again.age_s <= (ended.finish_time - ended.create_time).total_seconds()


async def test_a_queued_run_has_no_lost_holders(gateways: Gateways) -> None:
    active = await gateways.first.accept(new_run())
    waiting = await gateways.first.accept(new_run())
    assert active.dispatch is not None
    fence = fence_of(active.dispatch, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1), take_next=False)
    assert await gateways.second.claim(10) == [(PROJECT, waiting.run.id)]
    assert (await gateways.second.load(PROJECT, waiting.run.id)).lost_holders == 0
