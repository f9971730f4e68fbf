"""Old events, deliveries and webhooks are deleted in batches; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from contract.gateway.stores import Gateways
from gateway_records import (
    PROJECT,
    WELL,
    answering,
    asking,
    events,
    fence_of,
    new_run,
    new_webhook,
    taken,
)
from strata.gateway.retention import worker as retention_worker
from strata.gateway.retention.store import BACKLOG_FULL, PostgresRetention, RetainedKind
from strata.gateway.retention.worker import RetentionTerms, RetentionWorker
from strata.gateway.runs.domain.approvals import ApprovalFilter
from strata.gateway.runs.events.live_run import RunHub
from strata.gateway.runs.events.peers import Peers
from strata.gateway.runs.events.run_follower import RunFollower
from strata.gateway.runs.events.run_watch import RunWatch
from strata.gateway.webhooks.domain import AttemptResult, Delivery, DeliveryState
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.protocol.errors import (
    DeadlineExceededError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
)

OTHER = "project-2"


def worker_of(
    gateways: Gateways, message_days: dict[str, float] | None = None, **terms: Any
) -> RetentionWorker:
    async def days(project_id: str) -> float:
        return (message_days or {}).get(project_id, 0.0)

    return RetentionWorker(
        PostgresRetention(gateways.database, gateways.worker),
        days,
        RetentionTerms(**{"batch": 2, "pause_s": 0.0, **terms}),
    )


def webhooks_of(gateways: Gateways, per_project: int = 100) -> PostgresWebhookStore:
    return PostgresWebhookStore(gateways.database, gateways.worker, per_project=per_project)


async def execute(gateways: Gateways, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(gateways.urls.admin_url)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()


async def ended_run(gateways: Gateways, project: str = PROJECT) -> str:
    new = new_run(f"conversation-{project}", project)
    accepted = await gateways.first.accept(new)
    assert accepted.dispatch is not None
    fence = fence_of(accepted.dispatch, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1, 2), take_next=False)
    return new.id


async def deliveries(store: PostgresWebhookStore, project: str = PROJECT) -> list[Delivery]:
    return list(
        await store.deliveries(
            project, webhook_id="", run_id="", state=None, before=None, limit=100
        )
    )


async def make_older(gateways: Gateways, table: str, column: str, days: int) -> None:
    await execute(
        gateways, f"UPDATE gateway.{table} SET {column} = {column} - interval '{days} days'"
    )


async def test_events_of_runs_that_ended_long_ago_are_deleted_and_the_runs_stay(
    gateways: Gateways,
) -> None:
    old = [await ended_run(gateways, project) for project in (PROJECT, OTHER) for _ in range(3)]
    await make_older(gateways, "runs", "finish_time", 91)
    recent = await ended_run(gateways)
    under_way = await taken(gateways.first, "gateway-1", "conversation-2")
    await gateways.first.append(under_way, events(1))
    # Two replicas at the same time delete each row once.
    counts = await asyncio.gather(
        *(worker_of(gateways, event_days=90).delete_old() for _ in range(2))
    )
    assert sum(counts) == len(old)
    rows = await execute(gateways, "SELECT DISTINCT run_id FROM gateway.run_events")
    assert {row["run_id"] for row in rows} == {recent, under_way.run_id}
    assert (await gateways.first.get(PROJECT, old[0])).usage == WELL.usage
    assert await worker_of(gateways, event_days=90).delete_old() == 0


async def test_without_a_limit_events_are_kept_permanently(gateways: Gateways) -> None:
    await ended_run(gateways)
    await make_older(gateways, "runs", "finish_time", 4000)
    assert await worker_of(gateways, event_days=0).delete_old() == 0


async def test_events_are_kept_no_longer_than_the_messages_of_the_project(
    gateways: Gateways,
) -> None:
    forgotten, kept = await ended_run(gateways), await ended_run(gateways, OTHER)
    await make_older(gateways, "runs", "finish_time", 8)
    for event_days in (0, 90):
        await worker_of(gateways, {PROJECT: 7.0, OTHER: 9.0}, event_days=event_days).delete_old()
    rows = await execute(gateways, "SELECT DISTINCT run_id FROM gateway.run_events")
    assert [row["run_id"] for row in rows] == [kept]
    assert forgotten != kept


async def approvals(gateways: Gateways, project: str = PROJECT) -> list[str]:
    decided = ApprovalFilter(include_decided=True)
    listed = await gateways.first.approvals(project, decided, after=None, limit=10)
    return [approval.id for approval in listed]


async def test_decided_approvals_are_kept_as_long_as_events(gateways: Gateways) -> None:
    ids = {}
    for name, seconds in (("answered", 600), ("missed", -1), ("pending", 600), ("being", 600)):
        fence = await taken(gateways.first, "gateway-1", f"conversation-{name}")
        ids[name], ending = asking(seconds=seconds)
        await gateways.first.finish(fence, ending, events(1), take_next=False)
    for name in ("answered", "being"):
        answer = replace(answering(ids[name]), conversation_id=f"conversation-{name}")
        accepted = await gateways.first.accept(answer)
        assert accepted.dispatch is not None
        if name == "answered":
            fence = fence_of(accepted.dispatch, "gateway-1")
            await gateways.first.finish(fence, WELL, events(1), take_next=False)
    await make_older(gateways, "runs", "finish_time", 8)
    await make_older(gateways, "approvals", "decide_time", 8)
    await execute(
        gateways,
        "UPDATE gateway.approvals SET expire_time = expire_time - interval '8 days'"
        f" WHERE id = '{ids['missed']}'",
    )
    assert await approvals(gateways) == sorted(ids.values())
    await worker_of(gateways, {PROJECT: 9.0}, event_days=0).delete_old()
    assert await approvals(gateways) == sorted(ids.values())
    await worker_of(gateways, {PROJECT: 7.0}, event_days=0).delete_old()
    assert await approvals(gateways) == sorted((ids["pending"], ids["being"]))


async def test_the_retention_of_messages_is_read_once_for_each_project(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.finish(fence, asking()[1], events(1), take_next=False)
    asked = []

    async def days(project_id: str) -> float:
        asked.append(project_id)
        return 0.0

    store = PostgresRetention(gateways.database, gateways.worker)
    await RetentionWorker(store, days, RetentionTerms(pause_s=0.0)).delete_old()
    assert asked == [PROJECT]


@pytest.mark.parametrize("after", [0, 1])
async def test_stream_of_a_run_without_events_is_an_error_and_not_an_empty_stream(
    gateways: Gateways, after: int
) -> None:
    run_id = await ended_run(gateways)
    await make_older(gateways, "runs", "finish_time", 91)
    await worker_of(gateways).delete_old()
    watch = RunWatch(gateways.first, pause_s=0.1)
    follower = RunFollower(gateways.first, RunHub(watch.notify), watch, Peers(""))
    with pytest.raises(NotFoundError) as error:
        await anext(follower.follow(PROJECT, run_id, after, tokens=False))
    assert error.value.reason is Reason.RUN_EVENTS_DELETED
    # A follower that has the last event has missed nothing.
    assert [event async for event in follower.follow(PROJECT, run_id, 2, tokens=False)] == []


async def test_finished_deliveries_are_deleted_and_pending_ones_are_kept(
    gateways: Gateways,
) -> None:
    store = webhooks_of(gateways)
    await store.create(PROJECT, new_webhook())
    for _ in range(5):
        await ended_run(gateways)
    waiting, *sent = await deliveries(store)
    for delivery in sent:
        attempt = await store.take(PROJECT, delivery.id)
        assert attempt is not None
        await store.note(PROJECT, attempt, AttemptResult(200))
    await make_older(gateways, "webhook_deliveries", "create_time", 31)
    await worker_of(gateways, delivery_days=30).delete_old()
    assert [delivery.id for delivery in await deliveries(store)] == [waiting.id]
    assert len(await store.list(PROJECT, before=None, limit=10)) == 1


async def test_webhook_of_one_run_is_deleted_after_its_delivery(gateways: Gateways) -> None:
    store = webhooks_of(gateways)
    run_id = await ended_run(gateways)
    under_way = await taken(gateways.first, "gateway-1", "conversation-2")
    await store.create(PROJECT, replace(new_webhook(), run_id=run_id))
    kept, _ = await store.create(PROJECT, replace(new_webhook(), run_id=under_way.run_id))
    [delivery] = await deliveries(store)
    for table, column in (
        ("webhooks", "create_time"),
        ("runs", "finish_time"),
        ("webhook_deliveries", "create_time"),
    ):
        await make_older(gateways, table, column, 31)
    await worker_of(gateways).delete_old()
    assert len(await store.list(PROJECT, before=None, limit=10)) == 2
    attempt = await store.take(PROJECT, delivery.id)
    assert attempt is not None
    await store.note(PROJECT, attempt, AttemptResult(200))
    await worker_of(gateways).delete_old()
    assert [webhook.id for webhook in await store.list(PROJECT, before=None, limit=10)] == [kept.id]


async def test_webhooks_of_an_ended_run_count_until_they_are_delivered(
    gateways: Gateways,
) -> None:
    store = webhooks_of(gateways, per_project=2)
    run_id = await ended_run(gateways)
    for _ in range(2):
        await store.create(PROJECT, replace(new_webhook(), run_id=run_id))
    with pytest.raises(ResourceExhaustedError):
        await store.create(PROJECT, replace(new_webhook(), run_id=run_id))
    attempt = await store.take(PROJECT, (await deliveries(store))[0].id)
    assert attempt is not None
    await store.note(PROJECT, attempt, AttemptResult(200))
    await store.create(PROJECT, replace(new_webhook(), run_id=run_id))


async def test_the_oldest_of_too_many_deliveries_of_a_project_fail_with_the_reason(
    gateways: Gateways,
) -> None:
    store = webhooks_of(gateways)
    runs = {}
    for project, count in ((PROJECT, 7), (OTHER, 3)):
        await store.create(project, new_webhook())
        runs[project] = [await ended_run(gateways, project) for _ in range(count)]
    assert await worker_of(gateways, backlog=3).drop_backlogs() == 4
    by_state: dict[str, list[str]] = {}
    for delivery in reversed(await deliveries(store)):
        by_state.setdefault(delivery.state, []).append(delivery.run_id)
        failed = delivery.state is DeliveryState.FAILED
        assert delivery.last_error == (BACKLOG_FULL if failed else "")
    assert by_state == {"FAILED": runs[PROJECT][:4], "PENDING": runs[PROJECT][4:]}
    assert {delivery.state for delivery in await deliveries(store, OTHER)} == {
        DeliveryState.PENDING
    }
    # Deliveries can be sent again one by one.
    again = await store.deliver_again(PROJECT, (await deliveries(store))[-1].id)
    assert again.state is DeliveryState.PENDING


class SlowRetention(PostgresRetention):
    """A store in which batches of more than one run, and all of one project, take too long."""

    def __init__(self, gateways: Gateways, slow_project: str) -> None:
        super().__init__(gateways.database, gateways.worker)
        self._slow_project = slow_project

    async def delete(self, project_id: str, what: RetainedKind, *, days: float, limit: int) -> int:
        if limit > 1 or project_id == self._slow_project:
            raise DeadlineExceededError("a database statement took too long")
        return await super().delete(project_id, what, days=days, limit=limit)


async def test_a_project_whose_deletion_times_out_does_not_block_others(
    gateways: Gateways,
) -> None:
    await ended_run(gateways)
    await ended_run(gateways, OTHER)
    await execute(gateways, "UPDATE gateway.runs SET finish_time = now() - interval '91 days'")

    async def days(_: str) -> float:
        return 0.0

    first = min(PROJECT, OTHER)
    terms = RetentionTerms(batch=8, pause_s=0.0)
    worker = RetentionWorker(SlowRetention(gateways, first), days, terms)
    assert await worker.delete_old() == 1
    rows = await execute(gateways, "SELECT project_id, events_deleted FROM gateway.runs")
    assert {row["project_id"]: row["events_deleted"] for row in rows} == {
        first: False,
        max(PROJECT, OTHER): True,
    }


class NotingRetention(PostgresRetention):
    """A store that records the projects whose events were deleted, in order."""

    def __init__(self, gateways: Gateways) -> None:
        super().__init__(gateways.database, gateways.worker)
        self.order: list[str] = []

    async def delete(self, project_id: str, what: RetainedKind, *, days: float, limit: int) -> int:
        deleted = await super().delete(project_id, what, days=days, limit=limit)
        self.order += [project_id] * deleted
        return deleted


async def test_many_old_rows_of_one_project_do_not_delay_another_project(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_worker, "_BATCHES_IN_TURN", 2)
    first, second = sorted((PROJECT, OTHER))
    for project, count in ((first, 5), (second, 1)):
        for _ in range(count):
            await ended_run(gateways, project)
    await execute(gateways, "UPDATE gateway.runs SET finish_time = now() - interval '91 days'")

    async def days(_: str) -> float:
        return 0.0

    store = NotingRetention(gateways)
    worker = RetentionWorker(store, days, RetentionTerms(batch=1, pause_s=0.0))
    assert await worker.delete_old() == 6
    assert store.order == [first, first, second, first, first, first]
