"""``strata webhooks``: addresses that are called when a run has ended."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.gateway.v1 import webhook_service_pb2 as pb
from strata.cli.agent_names import complete_agent
from strata.cli.client import GatewayClient, all_of, first_of, new_request_id
from strata.cli.failures import UsageError
from strata.cli.options import GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import note, print_fields, print_json, print_listing, when
from strata.shared.convert.enums import enum_name

app = typer.Typer(
    help="Notify other programs when runs end.", no_args_is_help=True, add_completion=False
)

WebhookArgument = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Id of the webhook.")]
_STATES = ("pending", "delivered", "failed")


@app.command("create")
@online
def create_webhook(
    connection: GatewayOptions,
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the requests.")],
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event", help="run.completed, run.failed or run.cancelled; repeatable. Default: all."
        ),
    ] = None,
    agent: Annotated[
        str, typer.Option("--agent", autocompletion=complete_agent, help="Only runs of this agent.")
    ] = "",
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Only this run.")] = "",
    secret: Annotated[
        str,
        typer.Option(
            "--secret",
            envvar="STRATA_WEBHOOK_SECRET",
            help='"whsec_" and Base64 of 24 to 64 bytes. Default: a new one is generated.',
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Create a webhook, and print its secret, which is shown only once."""

    async def create(client: GatewayClient) -> pb.CreateWebhookResponse:
        request = pb.CreateWebhookRequest(
            request_id=new_request_id(),
            url=url,
            events=event or (),
            agent_id=await client.agent_id(agent) if agent else "",
            run_id=run,
            secret=secret,
        )
        return await client.webhooks.CreateWebhook(request)

    created = connection.run(create)
    if as_json:
        print_json(created)
        return
    print_fields(
        [
            ("id", created.webhook.id),
            ("url", created.webhook.url),
            ("events", _events(created.webhook)),
            ("secret", created.secret),
        ]
    )
    note("Keep the secret: it is not shown again.")


@app.command("list")
@online
def list_webhooks(
    connection: GatewayOptions, limit: LimitOption = 20, as_json: JsonOption = False
) -> None:
    """List webhooks, newest first."""

    async def read(client: GatewayClient) -> pb.ListWebhooksResponse:
        return await first_of(
            client.webhooks.ListWebhooks, pb.ListWebhooksRequest(), "webhooks", limit
        )

    listing = connection.run(read)
    print_listing(
        listing,
        ["id", "url", "events", "only", "state", "created"],
        [
            (
                webhook.id,
                webhook.url,
                _events(webhook),
                webhook.run_id or webhook.agent_id,
                "enabled" if webhook.enabled else "disabled",
                when(webhook.create_time),
            )
            for webhook in listing.webhooks
        ],
        empty="No webhooks.",
        as_json=as_json,
    )


@app.command("delete")
@online
def delete_webhook(connection: GatewayOptions, webhook: WebhookArgument) -> None:
    """Delete a webhook and its deliveries."""

    async def delete(client: GatewayClient) -> None:
        await client.webhooks.DeleteWebhook(pb.DeleteWebhookRequest(webhook_id=webhook))

    connection.run(delete)
    note(f"Deleted {webhook}.")


@app.command("deliveries")
@online
def list_deliveries(
    connection: GatewayOptions,
    webhook: Annotated[
        str, typer.Option("--webhook", metavar="WEBHOOK", help="Only of this webhook.")
    ] = "",
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Only of this run.")] = "",
    state: Annotated[
        str, typer.Option("--state", help="Only pending, delivered or failed ones.")
    ] = "",
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List deliveries with their attempts, newest first."""
    if state and state not in _STATES:
        raise UsageError(f"--state is one of {', '.join(_STATES)}.")

    async def read(client: GatewayClient) -> pb.ListWebhookDeliveriesResponse:
        request = pb.ListWebhookDeliveriesRequest(
            webhook_id=webhook,
            run_id=run,
            state=pb.DeliveryState.Value(f"DELIVERY_STATE_{state.upper() or 'UNSPECIFIED'}"),
        )
        return await first_of(client.webhooks.ListWebhookDeliveries, request, "deliveries", limit)

    listing = connection.run(read)
    print_listing(
        listing,
        ["id", "event", "state", "attempts", "next", "status", "error", "run"],
        [
            (
                delivery.id,
                delivery.event,
                _state(delivery),
                str(delivery.attempts),
                when(delivery.next_time),
                str(delivery.last_status or ""),
                delivery.last_error,
                delivery.run_id,
            )
            for delivery in listing.deliveries
        ],
        empty="No deliveries.",
        as_json=as_json,
    )


@app.command("redeliver")
@online
def redeliver(
    connection: GatewayOptions,
    deliveries: Annotated[
        list[str] | None, typer.Argument(metavar="DELIVERY...", help="Ids of deliveries.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="All failed deliveries, the oldest first.")
    ] = False,
    webhook: Annotated[
        str, typer.Option("--webhook", metavar="WEBHOOK", help="With --failed: only of this one.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Send deliveries again."""
    if bool(deliveries) == failed:
        raise UsageError("Give ids of deliveries, or --failed.")
    if webhook and not failed:
        raise UsageError("--webhook belongs to --failed.")

    async def redeliver_each(client: GatewayClient) -> pb.ListWebhookDeliveriesResponse:
        queued = pb.ListWebhookDeliveriesResponse()
        for delivery_id in deliveries or await _failed_ids(client, webhook):
            request = pb.RedeliverWebhookRequest(delivery_id=delivery_id)
            response = await client.webhooks.RedeliverWebhook(request)
            queued.deliveries.append(response.delivery)
        return queued

    queued = connection.run(redeliver_each)
    print_listing(
        queued,
        ["id", "state", "run"],
        [(delivery.id, _state(delivery), delivery.run_id) for delivery in queued.deliveries],
        empty="No failed deliveries.",
        as_json=as_json,
    )


async def _failed_ids(client: GatewayClient, webhook: str) -> list[str]:
    """Returns the ids of failed deliveries, the oldest first."""
    request = pb.ListWebhookDeliveriesRequest(webhook_id=webhook, state=pb.DELIVERY_STATE_FAILED)
    listing = await all_of(client.webhooks.ListWebhookDeliveries, request, "deliveries")
    return [delivery.id for delivery in reversed(listing.deliveries)]


def _events(webhook: pb.Webhook) -> str:
    return ", ".join(webhook.events) or "all"


def _state(delivery: pb.WebhookDelivery) -> str:
    return enum_name(pb.DeliveryState, delivery.state)
