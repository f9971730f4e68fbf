"""Webhooks and their deliveries. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

EVENTS = ("run.completed", "run.failed", "run.cancelled")
"""Events to subscribe to: "run." and the final state of the run in lower case."""

RETRIES_S = (5, 30, 120, 600, 1800, 3600, 7200, 14400, 28800)
"""Pauses after failed attempts, in seconds: 10 attempts in about 16 hours."""

_SECRET_PREFIX = "whsec_"  # noqa: S105
_NEW_SECRET_BYTES = 32
_SECRET_BYTES = range(24, 65)


class DeliveryState(StrEnum):
    """State of a delivery."""

    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A webhook to store; see the proto of CreateWebhook.

    Attributes:
        sealed_secret: The secret, encrypted.
        request_hash: Hash of the request, to recognise a repeated request_id.
    """

    id: str
    url: str
    events: tuple[str, ...]
    agent_id: str
    run_id: str
    sealed_secret: bytes
    request_id: str | None
    request_hash: bytes


@dataclass(frozen=True, slots=True)
class Webhook:
    """A stored webhook, without its secret."""

    id: str
    url: str
    events: tuple[str, ...]
    agent_id: str
    run_id: str
    enabled: bool
    create_time: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of one run's end to one webhook.

    Attributes:
        attempts: Number of all attempts.
        tries: Number of attempts since it was last queued.
    """

    id: str
    webhook_id: str
    run_id: str
    event: str
    state: DeliveryState
    attempts: int
    tries: int
    next_time: datetime | None
    last_status: int
    last_error: str
    last_attempt_time: datetime | None
    create_time: datetime


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery that is due, before it is taken for an attempt."""

    id: str
    webhook_id: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A delivery attempt of this gateway.

    Attributes:
        delivery: The delivery, with this attempt counted.
        url: Address of the receiver.
        sealed_secret: The encrypted signing secret.
        timestamp: Seconds since 1970, by the clock of the database.
    """

    delivery: Delivery
    url: str
    sealed_secret: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Result of a delivery attempt.

    Attributes:
        status: HTTP status; 0 if there was no response.
        error: Error message; empty if there was none.
    """

    status: int
    error: str = ""

    @property
    def delivered(self) -> bool:
        """Whether the receiver accepted it."""
        return not self.error and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver has unsubscribed (status 410)."""
        return self.status == 410


def new_secret() -> str:
    """Returns a new secret in the format of Standard Webhooks."""
    return _SECRET_PREFIX + base64.b64encode(os.urandom(_NEW_SECRET_BYTES)).decode("ascii")


def key_of(secret: str) -> bytes:
    """Returns the key in a secret.

    Raises:
        ValueError: It is not "whsec_" and the Base64 of 24 to 64 bytes.
    """
    if not secret.startswith(_SECRET_PREFIX):
        raise ValueError("no prefix")
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("no Base64") from error
    if len(key) not in _SECRET_BYTES:
        raise ValueError("wrong length")
    return key


def signature(secret: str, delivery_id: str, timestamp: int, body: bytes) -> str:
    """Returns the value of the header webhook-signature."""
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    digest = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode('ascii')}"
