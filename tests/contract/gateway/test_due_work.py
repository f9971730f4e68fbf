"""The statement with which a gateway finds due work of every kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, WELL, events, new_run, taken
from strata.gateway.due_work import DueKind, DueWork

_SCHEDULE = """
    INSERT INTO gateway.schedules (project_id, id, name, request_hash, organization_id, principal,
        scopes, agent_id, conversation_id, payload, payload_hash, max_steps, on_approval,
        on_overlap, cron, time_zone, state, next_time)
    VALUES ($1, 'schedule-1', '', '', 'organization-1', 'key-1', '{}', 'agent-1',
        'conversation-1', '', '', 0, '', '', '* * * * *', 'UTC', 'ACTIVE', $2)
"""
_APPROVAL = """
    INSERT INTO gateway.approvals (project_id, id, agent_id, conversation_id, run_id, request,
        expire_time, default_approve)
    VALUES ($1, 'approval-1', 'agent-1', 'conversation-1', 'run-1', '', $2, true)
"""
_WEBHOOK = """
    INSERT INTO gateway.webhooks (project_id, id, request_hash, url, events, agent_id, run_id,
        sealed_secret)
    VALUES ($1, 'webhook-1', '', 'https://hook.example', '{}', '', '', '')
"""
_DELIVERY = """
    INSERT INTO gateway.webhook_deliveries (project_id, id, webhook_id, run_id, event, next_time)
    VALUES ($1, 'delivery-1', 'webhook-1', 'run-1', 'run.completed', $2)
"""


async def woken(gateways: Gateways) -> list[DueKind]:
    """Polls once; returns the kinds of work whose workers were woken."""
    kinds: list[DueKind] = []
    wakes = {kind: lambda kind=kind: kinds.append(kind) for kind in DueKind}
    await DueWork(gateways.worker, wakes, poll_s=1).look()
    return kinds


async def test_a_check_for_due_work_costs_one_statement_and_wakes_nothing_without_work(
    gateways: Gateways,
) -> None:
    before = gateways.worker.statistics.round_trips
    assert await woken(gateways) == []
    assert gateways.worker.statistics.round_trips - before == 1


async def test_queued_run_and_run_of_a_dead_gateway_wake_the_dispatcher(
    gateways: Gateways,
) -> None:
    fence = await taken(gateways.short, "gateway-3")
    # The lease of this run ends after 0.05 s; another gateway's lease lasts for ten seconds.
    while await woken(gateways) != [DueKind.RUNS]:
        pass
    assert [run for _, run in await gateways.first.claim(5)] == [fence.run_id]
    assert await woken(gateways) == []
    await gateways.first.accept(new_run())
    assert await woken(gateways) == [DueKind.RUNS]


async def test_work_with_a_due_time_wakes_its_worker_from_that_time_on(gateways: Gateways) -> None:
    now = datetime.now(UTC)
    connection = await asyncpg.connect(gateways.urls.admin_url)
    try:
        await connection.execute(_WEBHOOK, PROJECT)
        for statement in (_SCHEDULE, _APPROVAL, _DELIVERY):
            await connection.execute(statement, PROJECT, now + timedelta(hours=1))
        assert await woken(gateways) == []
        for table, column, kind in (
            ("schedules", "next_time", DueKind.SCHEDULES),
            ("approvals", "expire_time", DueKind.APPROVALS),
            ("webhook_deliveries", "next_time", DueKind.DELIVERIES),
        ):
            update = f"UPDATE gateway.{table} SET {column} = $1"
            await connection.execute(update, now - timedelta(seconds=1))
            assert await woken(gateways) == [kind]
            await connection.execute(update, now + timedelta(hours=1))
    finally:
        await connection.close()


async def test_a_finished_run_leaves_no_due_work(gateways: Gateways) -> None:
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1), take_next=True)
    assert await woken(gateways) == []
