"""All processes are killed while webhooks are delivered: each end of a run is announced once."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import asyncpg
import pytest

from faults.live import Client, Live, inputs
from faults.webhook_receiver import WebhookReceiver
from polling import eventually
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import webhook_service_pb2 as pb
from strata.api.gateway.v1 import webhook_service_pb2_grpc as pb_grpc

pytestmark = pytest.mark.timeout(240)

DELIVERED = pb.DELIVERY_STATE_DELIVERED


@pytest.mark.parametrize(
    "live",
    [
        pytest.param(False, id="single"),
        pytest.param(True, id="split", marks=pytest.mark.slow),
    ],
    indirect=True,
)
async def test_each_end_of_a_run_has_one_delivery_that_arrives(
    live: Live, receiver: WebhookReceiver
) -> None:
    async with live.client() as client:
        agents = [await client.new_agent() for _ in range(4)]
        created = await stub(client).CreateWebhook(
            pb.CreateWebhookRequest(url=receiver.url), **client.call
        )
        # The receiver accepts the first delivery, refuses the second, and is still processing the
        # third when all processes are killed; the run of the fourth has not ended then.
        receiver.statuses |= {agents[1].id: 500, agents[2].id: 0}
        runs = []
        for agent in agents[:3]:
            runs.append(await start(client, agent.id, "Hello."))
            await eventually(lambda: bool(receiver.of(runs[-1])))
        runs.append(await start(client, agents[3].id, "gently"))

        async def first_two_are_recorded() -> bool:
            by_run = await deliveries_of(client, created.webhook.id)
            accepted, refused = (by_run[run_id] for run_id in runs[:2])
            return accepted.state == DELIVERED and refused.last_status == 500

        await eventually(first_two_are_recorded)
    await live.kill()
    receiver.release()
    await live.start()

    async with live.client() as client:
        assert (await client.follow(runs[3])).ended_well
        # Otherwise the interrupted attempt would be repeated after two minutes.
        await make_due(live, created.webhook.id)

        async def all_are_delivered() -> bool:
            by_run = await deliveries_of(client, created.webhook.id)
            return {delivery.state for delivery in by_run.values()} == {DELIVERED}

        await eventually(all_are_delivered)
        by_run = await deliveries_of(client, created.webhook.id)
        await stub(client).DeleteWebhook(
            pb.DeleteWebhookRequest(webhook_id=created.webhook.id), **client.call
        )
    assert by_run.keys() == set(runs)
    assert by_run[runs[0]].attempts == 1
    assert min(by_run[run_id].attempts for run_id in runs[1:3]) > 1
    key = base64.b64decode(created.secret.removeprefix("whsec_"))
    for run_id, delivery in by_run.items():
        received = receiver.of(run_id)
        # An attempt is counted before its request is sent.
        assert 1 <= len(received) <= delivery.attempts
        assert delivery.event == "run.completed"
        assert {one.delivery_id for one in received} == {delivery.id}
        assert len({one.body for one in received}) == 1
        for one in received:
            signed = f"{delivery.id}.{one.headers['webhook-timestamp']}.".encode() + one.body
            digest = hmac.new(key, signed, hashlib.sha256).digest()
            expected = f"v1,{base64.b64encode(digest).decode()}"
            assert one.headers["webhook-signature"] == expected


async def start(client: Client, agent_id: str, text: str) -> str:
    """Starts a run and returns its id."""
    request = run_pb.StartRunRequest(agent_id=agent_id, messages=inputs(text))
    return str((await client.runs.StartRun(request, **client.call)).run.id)


def stub(client: Client) -> pb_grpc.WebhookServiceStub:
    channel: Any = client.channel
    return pb_grpc.WebhookServiceStub(channel)


async def deliveries_of(client: Client, webhook_id: str) -> dict[str, pb.WebhookDelivery]:
    """Returns the deliveries of a webhook by run; a run must not have two."""
    request = pb.ListWebhookDeliveriesRequest(webhook_id=webhook_id)
    deliveries = (await stub(client).ListWebhookDeliveries(request, **client.call)).deliveries
    by_run = {delivery.run_id: delivery for delivery in deliveries}
    assert len(by_run) == len(deliveries), deliveries
    return by_run


async def make_due(live: Live, webhook_id: str) -> None:
    """Makes all deliveries of a webhook that have not arrived due now."""
    connection = await asyncpg.connect(live.admin_url)
    try:
        await connection.execute(
            "UPDATE gateway.webhook_deliveries SET next_time = now()"
            " WHERE webhook_id = $1 AND state = 'PENDING'",
            webhook_id,
        )
    finally:
        await connection.close()
