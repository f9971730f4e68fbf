"""The rule for ``request_id``: its form, digests of requests, and the error for a reused id."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from google.protobuf.message import Message

from strata.protocol.errors import AlreadyExistsError, FieldViolation, Reason, invalid_fields

MAX_REQUEST_ID = 256
"""Maximum number of characters of a request id."""

# No spaces: ids with a space are reserved for requests that a service makes to itself.
_REQUEST_ID = re.compile(rf"[!-~]{{0,{MAX_REQUEST_ID}}}")


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The idempotency key of a request.

    Attributes:
        id: The caller's request id; empty if repetitions are not recognised.
        digest: Digest of the method and the content of the request, see `digest_of`. A repeated id
            with another digest is refused.
    """

    id: str = ""
    digest: str = ""


def is_request_id(text: str) -> bool:
    """Whether clients may send a text as request id: `MAX_REQUEST_ID` printable ASCII characters.

    The empty text is valid; it means no id. Spaces are not printable here.
    """
    return _REQUEST_ID.fullmatch(text) is not None


def request_id_violations(request_id: str, field: str = "request_id") -> list[FieldViolation]:
    """Returns the violations of a request id.

    Args:
        request_id: The id; empty for none.
        field: Path of the field in the request.
    """
    if is_request_id(request_id):
        return []
    problem = f"must be at most {MAX_REQUEST_ID} printable ASCII characters without spaces"
    return [FieldViolation(field, problem)]


def check_request_id(request_id: str, field: str = "request_id") -> str:
    """Returns a valid request id.

    Raises:
        InvalidArgumentError: It is too long, or has other characters.
    """
    violations = request_id_violations(request_id, field)
    if violations:
        raise invalid_fields(violations)
    return request_id


def digest_of(label: str, message: Message) -> str:
    """Returns the digest of a request, in hex: SHA-256 of a label and the serialised message.

    A stored digest is compared with those of later releases, so a label never changes.

    Args:
        label: Distinguishes methods whose messages could have equal bytes.
        message: The request.
    """
    payload = message.SerializeToString(deterministic=True)
    return hashlib.sha256(label.encode() + payload).hexdigest()


def check_same_request(request_id: str, stored: str | bytes, digest: str | bytes) -> None:
    """Checks that a repeated request id carries the same request as before.

    Args:
        request_id: The id.
        stored: Digest of the first request with this id.
        digest: Digest of this request.

    Raises:
        AlreadyExistsError: The digests differ (``REQUEST_ID_REUSED``).
    """
    if stored != digest:
        raise request_id_reused(request_id)


def request_id_reused(request_id: str) -> AlreadyExistsError:
    """Returns the error for a request id that was used before for another request."""
    return AlreadyExistsError(
        f"The request_id {request_id!r} was used before for another request. Send each request with"
        " its own id.",
        reason=Reason.REQUEST_ID_REUSED,
        metadata={"request_id": request_id},
    )
