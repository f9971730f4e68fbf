"""Webhooks: real gateways on one database, real receivers, with kills."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import grpc.aio
import pytest

from command_line import run_command
from integration.gateway.scripted_runs import finished, plays, started
from integration.gateway.scripted_services import Gateway, ScriptedServices
from polling import eventually
from run_events import collect
from strata.api.common.v1 import run_event_pb2
from strata.api.gateway.v1 import webhook_service_pb2 as pb
from strata.api.gateway.v1 import webhook_service_pb2_grpc as pb_grpc
from strata.gateway.webhooks.domain import RETRIES_S
from strata.protocol.status import from_rpc_error
from strata.shared.ids import new_id
from strata.shared.secrets import generate_master_key
from web_servers import RawServer, ok, raw_server, redirect

MASTER_KEY = generate_master_key()
ACCEPTED = b"HTTP/1.1 204 No Content\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
GONE = b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
async def receiver() -> AsyncIterator[RawServer]:
    async with raw_server() as server:
        server.answers["/hook"] = ok(b"")
        yield server


async def gateway_of(services: ScriptedServices, *receivers: RawServer, **changes: Any) -> Gateway:
    """A gateway whose webhooks may reach the receivers."""
    settings: dict[str, Any] = {
        "master_keys": (MASTER_KEY,),
        "webhook_private_networks": ("127.0.0.0/8",),
        "webhook_ports": tuple(receiver.port for receiver in receivers),
        "webhook_timeout_s": 5,
        **changes,
    }
    return await services.gateway(**settings)


class Webhooks:
    """Calls of WebhookService at one gateway, with a key that has the scope."""

    def __init__(self, gateway: Gateway) -> None:
        self._stub = pb_grpc.WebhookServiceStub(gateway.channel)
        self._call: dict[str, Any] = {"metadata": gateway.metadata, "timeout": 30}

    async def create(self, url: str, **fields: Any) -> pb.CreateWebhookResponse:
        request = pb.CreateWebhookRequest(url=url, **fields)
        return await self._stub.CreateWebhook(request, **self._call)

    async def deliveries(self, **fields: Any) -> list[pb.WebhookDelivery]:
        request = pb.ListWebhookDeliveriesRequest(**fields)
        response = await self._stub.ListWebhookDeliveries(request, **self._call)
        return list(response.deliveries)

    async def all(self) -> list[pb.Webhook]:
        response = await self._stub.ListWebhooks(pb.ListWebhooksRequest(), **self._call)
        return list(response.webhooks)

    async def redeliver(self, delivery_id: str) -> pb.WebhookDelivery:
        request = pb.RedeliverWebhookRequest(delivery_id=delivery_id)
        return (await self._stub.RedeliverWebhook(request, **self._call)).delivery

    async def reach(self, state: Any, count: int = 1) -> list[pb.WebhookDelivery]:
        """Waits until a number of deliveries are in a state, and returns them."""
        deliveries: list[pb.WebhookDelivery] = []

        async def there() -> bool:
            deliveries[:] = await self.deliveries(state=state)
            return len(deliveries) >= count

        await eventually(there)
        return deliveries


def header(head: str, name: str) -> str:
    match = re.search(rf"^{name}: (.*?)\r$", head, re.IGNORECASE | re.MULTILINE)
    assert match is not None, head
    return match[1]


async def execute(services: ScriptedServices, *statements: str) -> None:
    connection = await asyncpg.connect(services.urls.admin_url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_the_end_of_a_run_is_delivered_once_and_signed(
    services: ScriptedServices, receiver: RawServer
) -> None:
    first = await gateway_of(services, receiver)
    second = await gateway_of(services, receiver)
    created = await Webhooks(first).create(receiver.url("/hook"))
    assert created.secret.startswith("whsec_")
    events = await collect(second.send(services.new_agent()))
    [delivery] = await Webhooks(second).reach(pb.DELIVERY_STATE_DELIVERED)
    run = await first.run(events[0].run_id)
    assert (delivery.run_id, delivery.event) == (run.id, "run.completed")
    assert (delivery.attempts, delivery.last_status, delivery.last_error) == (1, 200, "")
    [body], [head] = receiver.bodies, receiver.heads
    # Verified like a receiver does, by the specification of Standard Webhooks.
    signed = f"{header(head, 'webhook-id')}.{header(head, 'webhook-timestamp')}.".encode() + body
    key = base64.b64decode(created.secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert header(head, "webhook-signature") == f"v1,{expected}"
    assert header(head, "webhook-id") == delivery.id
    assert head.startswith("POST /hook HTTP/1.1\r\n")
    content = json.loads(body)
    assert content["type"] == "run.completed"
    assert content["data"]["run_id"] == run.id
    assert content["data"]["stop_reason"] == "END_TURN"
    assert content["data"]["usage"]["total_tokens"] == 10


async def test_a_webhook_gets_the_events_the_agent_and_the_run_that_it_names(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    services = socket_services
    gateway = await gateway_of(services, receiver)
    webhooks = Webhooks(gateway)
    agent, other = services.new_agent(), services.new_agent()
    later = await gateway.start_run(other, start_time={"seconds": 4_000_000})
    await eventually(lambda: ended(gateway, later.id))
    waiting = await gateway.start_run(other, start_time={"seconds": int(time.time()) + 3600})
    of_agent = await webhooks.create(receiver.url("/hook"), agent_id=agent)
    of_failures = await webhooks.create(receiver.url("/hook"), events=["run.failed"])
    of_waiting = await webhooks.create(receiver.url("/hook"), run_id=waiting.id)
    of_ended = await webhooks.create(receiver.url("/hook"), run_id=later.id)
    await collect(gateway.send(agent))
    await collect(gateway.send(other))
    await gateway.cancel(waiting.id)
    done = await webhooks.reach(pb.DELIVERY_STATE_DELIVERED, 3)

    services.turns.script = plays(started(), finished(run_event_pb2.STOP_REASON_ERROR))
    await collect(gateway.send(other))
    done = await webhooks.reach(pb.DELIVERY_STATE_DELIVERED, 4)
    assert sorted((delivery.webhook_id, delivery.event) for delivery in done) == sorted(
        [
            (of_agent.webhook.id, "run.completed"),
            (of_failures.webhook.id, "run.failed"),
            (of_waiting.webhook.id, "run.cancelled"),
            (of_ended.webhook.id, "run.completed"),
        ]
    )
    assert len(receiver.bodies) == 4


async def ended(gateway: Gateway, run_id: str) -> bool:
    return (await gateway.run(run_id)).HasField("finish_time")


async def test_a_failed_delivery_is_repeated_with_the_same_id_up_to_a_limit(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    services = socket_services
    receiver.answers["/hook"] = BROKEN
    gateway = await gateway_of(services, receiver)
    webhooks = Webhooks(gateway)
    await webhooks.create(receiver.url("/hook"))
    await collect(gateway.send(services.new_agent()))

    async def tried() -> bool:
        [delivery] = await webhooks.deliveries()
        return delivery.last_status == 500

    await eventually(tried)
    [delivery] = await webhooks.deliveries()
    assert delivery.state == pb.DELIVERY_STATE_PENDING
    assert delivery.attempts == 1
    assert delivery.next_time.seconds > delivery.last_attempt_time.seconds
    # The pauses grow; after the last attempt the delivery has failed.
    due = "UPDATE gateway.webhook_deliveries SET next_time = now()"
    await execute(services, f"{due}, tries = {len(RETRIES_S)} WHERE state = 'PENDING'")
    [failed] = await webhooks.reach(pb.DELIVERY_STATE_FAILED)
    assert failed.attempts == 2
    assert failed.last_error == "The receiver answered 500 Internal Server Error."
    assert {header(head, "webhook-id") for head in receiver.heads} == {failed.id}
    # The receiver is repaired, and a redelivery is requested.
    receiver.answers["/hook"] = ok(b"")
    assert (await webhooks.redeliver(failed.id)).state == pb.DELIVERY_STATE_PENDING
    [done] = await webhooks.reach(pb.DELIVERY_STATE_DELIVERED)
    assert (done.id, done.attempts) == (failed.id, 3)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
async def test_an_event_is_delivered_if_only_the_body_of_the_answer_cannot_be_read(
    socket_services: ScriptedServices, receiver: RawServer, answer: bytes
) -> None:
    receiver.answers["/hook"] = answer
    gateway = await gateway_of(socket_services, receiver)
    webhooks = Webhooks(gateway)
    await webhooks.create(receiver.url("/hook"))
    await collect(gateway.send(socket_services.new_agent()))

    async def tried() -> bool:
        [delivery] = await webhooks.deliveries()
        return bool(delivery.last_error or delivery.last_status)

    await eventually(tried)
    [delivery] = await webhooks.deliveries()
    assert (delivery.state, delivery.last_status) == (pb.DELIVERY_STATE_DELIVERED, 200)


async def test_a_redirect_counts_as_a_failure(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    receiver.answers["/hook"] = redirect(receiver.url("/elsewhere"), 307)
    receiver.answers["/elsewhere"] = ok(b"")
    gateway = await gateway_of(socket_services, receiver)
    webhooks = Webhooks(gateway)
    await webhooks.create(receiver.url("/hook"))
    await collect(gateway.send(socket_services.new_agent()))

    async def tried() -> bool:
        [delivery] = await webhooks.deliveries()
        return bool(delivery.last_error)

    await eventually(tried)
    assert not any("/elsewhere" in head for head in receiver.heads)


async def test_a_receiver_that_answers_410_disables_its_webhook(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    receiver.answers["/hook"] = GONE
    gateway = await gateway_of(socket_services, receiver)
    webhooks = Webhooks(gateway)
    await webhooks.create(receiver.url("/hook"))
    await collect(gateway.send(socket_services.new_agent()))
    [failed] = await webhooks.reach(pb.DELIVERY_STATE_FAILED)
    assert [webhook.enabled for webhook in await webhooks.all()] == [False]
    await collect(gateway.send(socket_services.new_agent()))
    assert len(await webhooks.deliveries()) == 1
    # Requesting the delivery again enables the webhook.
    receiver.answers["/hook"] = ok(b"")
    await webhooks.redeliver(failed.id)
    await webhooks.reach(pb.DELIVERY_STATE_DELIVERED)
    assert [webhook.enabled for webhook in await webhooks.all()] == [True]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/hook",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://localhost/",
        "http://10.0.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "https://example.com:22/",
        "https://user:pass@example.com/",
        "ftp://example.com/",
        "example.com",
        "",
    ],
)
async def test_a_url_that_may_not_be_reached_is_refused(
    socket_services: ScriptedServices, url: str
) -> None:
    gateway = await socket_services.gateway(master_keys=(MASTER_KEY,))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await Webhooks(gateway).create(url)
    error = from_rpc_error(raised.value)
    assert (error.status, error.violations[0].field) == ("INVALID_ARGUMENT", "url")


async def test_an_address_that_has_become_private_is_not_reached(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    maker = await gateway_of(socket_services, receiver, poll_s=60)
    await Webhooks(maker).create(receiver.url("/hook"))
    await collect(maker.send(socket_services.new_agent()))
    await maker.stop()
    # Another gateway, which does not allow private networks.
    strict = await gateway_of(socket_services, receiver, webhook_private_networks=())

    async def tried() -> bool:
        [delivery] = await Webhooks(strict).deliveries()
        return "private" in delivery.last_error or delivery.state == pb.DELIVERY_STATE_DELIVERED

    await eventually(tried)
    assert receiver.heads == []


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"events": ["run.started"]}, "events"),
        ({"secret": "short"}, "secret"),
        ({"secret": "whsec_AAAA"}, "secret"),
        ({"request_id": "ä"}, "request_id"),
    ],
)
async def test_a_wrong_field_is_named(
    socket_services: ScriptedServices, receiver: RawServer, fields: dict[str, Any], violation: str
) -> None:
    gateway = await gateway_of(socket_services, receiver)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await Webhooks(gateway).create(receiver.url("/hook"), **fields)
    assert from_rpc_error(raised.value).violations[0].field == violation


async def test_webhook_of_a_missing_target_or_without_a_master_key_is_refused(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    webhooks = Webhooks(await gateway_of(socket_services, receiver))
    without_key = Webhooks(await gateway_of(socket_services, receiver, master_keys=()))
    for calls, fields, expected in (
        (webhooks, {"agent_id": new_id("agent")}, "AGENT_NOT_FOUND"),
        (webhooks, {"run_id": new_id("run")}, "RUN_NOT_FOUND"),
        (without_key, {}, "SECRETS_NOT_CONFIGURED"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.create(receiver.url("/hook"), **fields)
        assert from_rpc_error(raised.value).reason.value == expected


async def test_a_repeated_request_returns_the_webhook_without_its_secret(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    webhooks = Webhooks(await gateway_of(socket_services, receiver))
    first = await webhooks.create(receiver.url("/hook"), request_id="r")
    again = await webhooks.create(receiver.url("/hook"), request_id="r")
    assert (again.webhook.id, again.secret) == (first.webhook.id, "")
    connection = await asyncpg.connect(socket_services.urls.admin_url)
    sealed = await connection.fetchval("SELECT sealed_secret FROM gateway.webhooks")
    await connection.close()
    key = base64.b64decode(first.secret.removeprefix("whsec_"))
    assert key not in sealed
    assert first.secret.encode() not in sealed


async def test_a_slow_receiver_does_not_delay_runs_and_other_projects(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    services = socket_services

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    receiver.answers["/slow"] = never
    gateway = await gateway_of(services, receiver, webhook_timeout_s=60)
    await Webhooks(gateway).create(receiver.url("/slow"))
    for _ in range(12):
        await collect(gateway.send(services.new_agent()))
    await eventually(lambda: len(receiver.heads) == 1)
    # The receiver of another project is fast.
    await execute(
        services,
        "INSERT INTO gateway.webhooks SELECT 'project-other', id, request_id, request_hash,"
        f" '{receiver.url('/hook')}', events, agent_id, run_id, sealed_secret"
        " FROM gateway.webhooks",
        "INSERT INTO gateway.webhook_deliveries (project_id, id, webhook_id, run_id, event)"
        " SELECT 'project-other', 'delivery-other', id, 'run-other', 'run.completed'"
        " FROM gateway.webhooks WHERE project_id = 'project-other'",
    )

    async def tried() -> bool:
        connection = await asyncpg.connect(services.urls.admin_url)
        try:
            return bool(
                await connection.fetchval(
                    "SELECT attempts FROM gateway.webhook_deliveries WHERE id = 'delivery-other'"
                )
            )
        finally:
            await connection.close()

    await eventually(tried)
    slow = [head for head in receiver.heads if "/slow" in head]
    assert len(slow) == 1, "a webhook that has not answered yet gets one delivery at a time"


@pytest.mark.parametrize("answer_first", [False, True])
async def test_receivers_that_hang_do_not_delay_others_of_their_project(
    socket_services: ScriptedServices, receiver: RawServer, answer_first: bool
) -> None:
    services = socket_services
    do_hang = not answer_first

    async def answers_then_hangs(writer: asyncio.StreamWriter) -> None:
        if do_hang:
            await asyncio.Event().wait()
        writer.write(ACCEPTED)

    gateway = await gateway_of(services, receiver, webhook_timeout_s=60)
    webhooks = Webhooks(gateway)
    for number in range(3):
        path = f"/hangs-{number}"
        receiver.answers[path] = answers_then_hangs
        await webhooks.create(receiver.url(path))
    healthy = (await webhooks.create(receiver.url("/hook"))).webhook
    if answer_first:
        await collect(gateway.send(services.new_agent()))
        await webhooks.reach(pb.DELIVERY_STATE_DELIVERED, 4)
        do_hang = True
    for _ in range(12):
        await collect(gateway.send(services.new_agent()))

    async def all_of_healthy() -> bool:
        delivered = await webhooks.deliveries(
            webhook_id=healthy.id, state=pb.DELIVERY_STATE_DELIVERED
        )
        return len(delivered) == 12 + answer_first

    # Before the requests of the others reach their time limit.
    await eventually(all_of_healthy, seconds=40)
    hanging = sum("/hangs-" in head for head in receiver.heads) - 3 * answer_first
    assert 3 <= hanging <= (16 if answer_first else 3)


@pytest.mark.parametrize("failing", [1, 5])
async def test_receivers_that_fail_do_not_delay_others_of_their_project(
    socket_services: ScriptedServices, receiver: RawServer, failing: int
) -> None:
    services = socket_services
    paths = [f"/fails-{number}" for number in range(failing)]
    attempts = 0

    async def fails_then_hangs(writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        if attempts > failing:
            await asyncio.Event().wait()
        writer.write(BROKEN)

    gateway = await gateway_of(services, receiver, webhook_timeout_s=60)
    webhooks = Webhooks(gateway)
    for path in paths:
        receiver.answers[path] = fails_then_hangs
        await webhooks.create(receiver.url(path))
    await collect(gateway.send(services.new_agent()))
    await eventually(lambda: attempts == failing)
    healthy = (await webhooks.create(receiver.url("/hook"))).webhook
    for _ in range(24):
        await collect(gateway.send(services.new_agent()))
    delivered = await webhooks.reach(pb.DELIVERY_STATE_DELIVERED, 24)
    assert {delivery.webhook_id for delivery in delivered} == {healthy.id}
    assert attempts == failing + min(failing, 4)


async def test_another_gateway_makes_the_delivery_of_a_gateway_that_died(
    socket_services: ScriptedServices, receiver: RawServer
) -> None:
    services = socket_services
    hanging = asyncio.Event()

    async def never(_: asyncio.StreamWriter) -> None:
        hanging.set()
        await asyncio.Event().wait()

    receiver.answers["/hook"] = never
    first = await gateway_of(services, receiver, webhook_timeout_s=60)
    await Webhooks(first).create(receiver.url("/hook"))
    await collect(first.send(services.new_agent()))
    await hanging.wait()
    await first.stop()
    receiver.answers["/hook"] = ok(b"")
    second = await gateway_of(services, receiver)
    [delivery] = await Webhooks(second).deliveries()
    # While the first attempt may still be running, there is no second one.
    assert (delivery.state, delivery.attempts) == (pb.DELIVERY_STATE_PENDING, 1)
    await execute(services, "UPDATE gateway.webhook_deliveries SET next_time = now()")
    [done] = await Webhooks(second).reach(pb.DELIVERY_STATE_DELIVERED)
    assert (done.id, done.attempts) == (delivery.id, 2)


async def test_the_command_line_creates_and_lists_webhooks_and_repeats_deliveries(
    socket_services: ScriptedServices, receiver: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await gateway_of(socket_services, receiver)
    monkeypatch.setenv("STRATA_ADDRESS", gateway.address)
    monkeypatch.setenv("STRATA_API_KEY", gateway.api_key)

    async def strata(*arguments: str) -> str:
        done = await run_command("webhooks", *arguments)
        assert done.code == 0, done
        return done.out

    created = json.loads(await strata("create", receiver.url("/hook"), "--json"))
    assert created["secret"].startswith("whsec_")
    assert created["webhook"]["id"] in await strata("list")
    assert created["secret"] not in await strata("list", "--json")
    await collect(gateway.send(socket_services.new_agent()))
    [delivery] = await Webhooks(gateway).reach(pb.DELIVERY_STATE_DELIVERED)
    assert delivery.id in await strata("deliveries", "--state", "delivered")
    assert delivery.id in await strata("redeliver", delivery.id)
    await eventually(lambda: len(receiver.bodies) == 2)
    assert (await strata("redeliver", "--failed")).splitlines()[1:] == []

    await collect(gateway.send(socket_services.new_agent()))
    await Webhooks(gateway).reach(pb.DELIVERY_STATE_DELIVERED, 2)
    await execute(
        socket_services, "UPDATE gateway.webhook_deliveries SET state = 'FAILED', next_time = NULL"
    )
    only = ("--webhook", created["webhook"]["id"])
    queued = json.loads(await strata("redeliver", "--failed", *only, "--json"))["deliveries"]
    times = [delivery["createTime"] for delivery in queued]
    assert (len(queued), times) == (2, sorted(times))
    await Webhooks(gateway).reach(pb.DELIVERY_STATE_DELIVERED, 2)
    for wrong in ((), (delivery.id, "--failed"), (delivery.id, *only)):
        assert (await run_command("webhooks", "redeliver", *wrong)).code == 2
    await strata("delete", created["webhook"]["id"])
    assert created["webhook"]["id"] not in await strata("list")
