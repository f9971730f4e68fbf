"""Validates and converts requests and responses for webhooks."""

from __future__ import annotations

import hashlib

from strata.api.gateway.v1 import webhook_service_pb2 as pb
from strata.gateway.runs.convert import refuse, request_id_violations
from strata.gateway.webhooks.domain import EVENTS, Delivery, DeliveryState, Webhook, key_of
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.ids import check_id


def check_webhook(request: pb.CreateWebhookRequest) -> None:
    """Validates a request for a webhook, except for its URL.

    Raises:
        InvalidArgumentError: Naming every wrong field.
    """
    if request.agent_id:
        check_id(request.agent_id, "agent", field="agent_id")
    if request.run_id:
        check_id(request.run_id, "run", field="run_id")
    violations = list(request_id_violations(request.request_id))
    if not set(EVENTS).issuperset(request.events):
        violations.append(FieldViolation("events", f"must be of {', '.join(EVENTS)}"))
    if request.secret:
        try:
            key_of(request.secret)
        except ValueError:
            violations.append(
                FieldViolation("secret", 'must be "whsec_" and the Base64 of 24 to 64 bytes')
            )
    refuse(violations)


def digest(request: pb.CreateWebhookRequest) -> bytes:
    """Returns the hash of a request, to recognise a repeated request_id."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


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
    try:
        name = pb.DeliveryState.Name(request.state)
    except ValueError:
        raise InvalidArgumentError(
            "state is not a known state.",
            violations=[FieldViolation("state", "is not a known state")],
        ) from None
    return DeliveryState(name.removeprefix("DELIVERY_STATE_"))


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
        state=pb.DeliveryState.Value(f"DELIVERY_STATE_{delivery.state}"),
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
