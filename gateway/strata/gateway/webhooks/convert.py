"""Validates and converts requests and responses for webhooks."""

from __future__ import annotations

from strata.api.gateway.v1 import webhook_service_pb2 as pb
from strata.gateway.webhooks.domain import EVENTS, Delivery, DeliveryState, Webhook, key_of
from strata.protocol.errors import FieldViolation, InvalidArgumentError, invalid_field
from strata.shared.checks import Checks
from strata.shared.convert.enums import EnumTable
from strata.shared.idempotency.keys import digest_of

_STATES = EnumTable(pb.DeliveryState, DeliveryState)


def check_webhook(request: pb.CreateWebhookRequest) -> None:
    """Validates a request for a webhook, except for its URL.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    checks = Checks()
    checks.id(request.agent_id, "agent", "agent_id", optional=True)
    checks.id(request.run_id, "run", "run_id", optional=True)
    checks.request_id(request.request_id)
    are_known = set(EVENTS).issuperset(request.events)
    checks.unless(are_known, "events", f"must be of {', '.join(EVENTS)}")
    if request.secret:
        try:
            key_of(request.secret)
        except ValueError:
            checks.fail("secret", 'must be "whsec_" and the Base64 of 24 to 64 bytes')
    checks.done()


def digest(request: pb.CreateWebhookRequest) -> bytes:
    """Returns the hash of a request, to recognise a repeated request_id."""
    return bytes.fromhex(digest_of("", request))


def wrong_url(error: InvalidArgumentError) -> InvalidArgumentError:
    """Returns the error for a request with a forbidden URL."""
    return InvalidArgumentError(error.message, violations=[FieldViolation("url", error.message)])


def state_of(request: pb.ListWebhookDeliveriesRequest) -> DeliveryState | None:
    """Returns the state to filter deliveries by; None for any.

    Raises:
        InvalidArgumentError: There is no such state.
    """
    if request.state == pb.DELIVERY_STATE_UNSPECIFIED:
        return None
    if request.state not in _STATES.from_proto:
        raise invalid_field("state", "is not a known state")
    return _STATES.from_proto[request.state]


def webhook_to_pb(webhook: Webhook) -> pb.Webhook:
    """Converts a webhook."""
    out = pb.Webhook(
        id=webhook.id,
        url=webhook.url,
        events=webhook.events,
        agent_id=webhook.agent_id,
        run_id=webhook.run_id,
        enabled=webhook.enabled,
    )
    out.create_time.FromDatetime(webhook.create_time)
    return out


def delivery_to_pb(delivery: Delivery) -> pb.WebhookDelivery:
    """Converts a delivery."""
    out = pb.WebhookDelivery(
        id=delivery.id,
        webhook_id=delivery.webhook_id,
        run_id=delivery.run_id,
        event=delivery.event,
        state=_STATES.to_proto[delivery.state],
        attempts=delivery.attempts,
        last_status=delivery.last_status,
        last_error=delivery.last_error,
    )
    out.create_time.FromDatetime(delivery.create_time)
    if delivery.next_time is not None:
        out.next_time.FromDatetime(delivery.next_time)
    if delivery.last_attempt_time is not None:
        out.last_attempt_time.FromDatetime(delivery.last_attempt_time)
    return out
