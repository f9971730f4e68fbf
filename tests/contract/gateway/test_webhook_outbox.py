"""The statement that ends a run queues its deliveries; on the real PostgreSQL."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import pytest

from contract.gateway.stores import Gateways
from gateway_records import PROJECT, WELL, events, fence_of, new_run, new_webhook, taken
from polling import eventually
from strata.gateway.runs.domain.runs import LeaseLostError
from strata.gateway.webhooks.domain import AttemptResult
from strata.gateway.webhooks.secrets import WebhookSecrets
from strata.gateway.webhooks.sender import SendTerms, WebhookSender
from strata.gateway.webhooks.store import PostgresWebhookStore
from strata.protocol.errors import ResourceExhaustedError
from strata.shared.context import calling_project
from strata.shared.secrets import open_envelope
from strata.shared.web.fetcher import Fetcher
from strata.shared.web.url_guard import Guard


def store_of(gateways: Gateways) -> PostgresWebhookStore:
    return PostgresWebhookStore(gateways.database, gateways.worker, per_project=2)


async def deliveries(store: PostgresWebhookStore, project_id: str = PROJECT) -> list[str]:
    listed = await store.deliveries(
        project_id, webhook_id="", run_id="", state=None, before=None, limit=10
    )
    return [delivery.run_id for delivery in listed]


async def test_the_end_of_a_run_is_one_statement_with_webhooks_and_without(
    gateways: Gateways,
) -> None:
    store, statistics = store_of(gateways), gateways.database.statistics
    costs = []
    for _ in range(2):
        fence = await taken(gateways.first, "gateway-1")
        before = statistics.round_trips
        await gateways.first.finish(fence, WELL, events(1), take_next=True)
        costs.append(statistics.round_trips - before)
        await store.create(PROJECT, new_webhook())
    assert costs == [1, 1]
    assert await deliveries(store) == [fence.run_id]


async def test_gateway_that_lost_the_lease_queues_no_delivery(gateways: Gateways) -> None:
    store = store_of(gateways)
    await store.create(PROJECT, new_webhook())
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1), take_next=True)
    with pytest.raises(LeaseLostError):
        await gateways.second.finish(fence, WELL, events(1), take_next=True)
    assert await deliveries(store) == [fence.run_id]


async def test_cancelling_a_queued_run_queues_one_delivery(gateways: Gateways) -> None:
    store = store_of(gateways)
    await store.create(PROJECT, new_webhook())
    await taken(gateways.first, "gateway-1")
    waiting = await gateways.first.accept(new_run())
    for _ in range(2):
        await gateways.first.cancel(PROJECT, waiting.run.id, b"finished")
    assert await deliveries(store) == [waiting.run.id]


async def test_webhooks_of_another_project_get_nothing(gateways: Gateways) -> None:
    store = store_of(gateways)
    await store.create("project-2", new_webhook())
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1), take_next=True)
    assert await deliveries(store) == []
    assert await deliveries(store, "project-2") == []


async def test_late_answer_does_not_change_a_later_attempt(gateways: Gateways) -> None:
    store = store_of(gateways)
    await store.create(PROJECT, new_webhook())
    fence = await taken(gateways.first, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1), take_next=True)
    [delivery_id] = (await store.due(10))[PROJECT]
    slow = await store.take(PROJECT, delivery_id)
    assert slow is not None
    assert await store.take(PROJECT, delivery_id) is None
    await store.deliver_again(PROJECT, delivery_id)
    quick = await store.take(PROJECT, delivery_id)
    assert quick is not None
    seen = []
    for attempt, outcome in ((slow, AttemptResult(500, "broken")), (quick, AttemptResult(200))):
        await store.note(PROJECT, attempt, outcome)
        [delivery] = await store.deliveries(
            PROJECT, webhook_id="", run_id="", state=None, before=None, limit=10
        )
        seen.append((delivery.state, delivery.attempts, delivery.last_status))
    assert seen == [("PENDING", 2, 0), ("DELIVERED", 2, 200)]


async def test_a_project_has_a_limit_of_webhooks(gateways: Gateways) -> None:
    store = store_of(gateways)
    for _ in range(2):
        await store.create(PROJECT, new_webhook())
    with pytest.raises(ResourceExhaustedError):
        await store.create(PROJECT, new_webhook())


def opened_secrets() -> WebhookSecrets:
    return WebhookSecrets(open_envelope([base64.b64encode(bytes(32)).decode()], None))


async def create_webhook(
    store: PostgresWebhookStore, secrets: WebhookSecrets, project_id: str = PROJECT
) -> None:
    new = new_webhook()
    sealed = secrets.seal(project_id, new.id, "whsec_" + base64.b64encode(bytes(32)).decode())
    await store.create(project_id, replace(new, sealed_secret=sealed))


async def end_run(gateways: Gateways, text: str, project_id: str = PROJECT) -> None:
    accepted = await gateways.first.accept(new_run(text, project_id))
    assert accepted.dispatch is not None
    fence = fence_of(accepted.dispatch, "gateway-1")
    await gateways.first.finish(fence, WELL, events(1), take_next=False)


async def test_receiver_names_are_resolved_on_behalf_of_their_project(gateways: Gateways) -> None:
    store, asked = store_of(gateways), []

    async def resolve(host: str, _: int) -> list[str]:
        asked.append((calling_project(), host))
        raise OSError("no such name")

    secrets = opened_secrets()
    for project_id in (PROJECT, "project-2"):
        await create_webhook(store, secrets, project_id)
        await end_run(gateways, f"of {project_id}", project_id)
    async with Fetcher(Guard(resolve)) as fetcher:
        sender = WebhookSender(store, gateways.first, secrets, fetcher, SendTerms())
        assert await sender.send_due() == 2
        await sender.wait_until_sent()
    assert sorted(asked) == [(PROJECT, "hook.example"), ("project-2", "hook.example")]


async def test_deliveries_above_the_limits_are_sent_when_others_are_done(
    gateways: Gateways,
) -> None:
    store, attempted = store_of(gateways), []

    async def resolve(host: str, _: int) -> list[str]:
        attempted.append(host)
        raise OSError("no such name")

    secrets = opened_secrets()
    await create_webhook(store, secrets)
    for number in range(9):
        await end_run(gateways, f"message {number}")
    async with Fetcher(Guard(resolve)) as fetcher:
        terms = SendTerms(max_concurrent_of_project=2)
        sender = WebhookSender(store, gateways.first, secrets, fetcher, terms)
        sending = asyncio.create_task(sender.keep_sending())
        # A single poll finds that deliveries are due.
        sender.wake()
        await eventually(lambda: len(attempted) == 9)
        sending.cancel()
