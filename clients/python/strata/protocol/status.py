"""Conversion between the error tree and gRPC statuses with ``google.rpc`` details.

A status carries `ErrorInfo` (reason, domain ``strata``, metadata), `BadRequest`
(field violations) and `RetryInfo` (AIP-193) in the trailing metadata. Peers limit its size to
8 KiB by default and replace a larger error by RESOURCE_EXHAUSTED, so long parts are truncated here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from strata.protocol.errors import (
    ERRORS,
    FieldViolation,
    InternalError,
    Reason,
    StrataError,
)

DOMAIN = "strata"
DETAILS_KEY = "grpc-status-details-bin"

FAILED_WRITE = "Internal error from Core"
"""Text of the status that grpc.aio (1.85) gives a call when a write fails, because the call is over
or the connection is broken."""

_MAX_MESSAGE_BYTES = 600
_MAX_VALUE_BYTES = 400
_MAX_DETAILS_BYTES = 3000
_RETRY_INFO_LIMIT_S = 24 * 3600.0

# gRPC's own messages contain addresses of services; callers get these sentences instead.
_PLAIN = {
    grpc.StatusCode.UNAVAILABLE: "A service that the call needs cannot be reached now.",
    grpc.StatusCode.DEADLINE_EXCEEDED: "A service that the call needs did not answer in time.",
    grpc.StatusCode.CANCELLED: "A service that the call needs ended the call early.",
}
_LOST = frozenset({*_PLAIN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})
_ADDRESS = re.compile(r"\b(?:ipv4|ipv6|dns|unix|uds|tcp)\b\S*:|\S:\d{2,5}\b", re.IGNORECASE)
# A connection that breaks in the middle of a call is not always UNAVAILABLE.
_BROKEN = re.compile(
    r"RST_STREAM|stream removed|GOAWAY|socket closed|connection (?:reset|closed|refused)|keepalive",
    re.IGNORECASE,
)
# Texts of gRPC for a call that had no connection, or that the peer refused with REFUSED_STREAM, by
# which HTTP/2 guarantees that it was not processed. A call with any other text counts as sent, so
# that a new wording in gRPC can only prevent a retry.
_UNSENT = re.compile(
    r"connections to all backends failing|failed to connect to all addresses|errors resolving "
    r"|DNS resolution failed|empty address list"
    r"|Stream removed \(RST_STREAM \(Received RST_STREAM with error code 7\)",
    re.IGNORECASE,
)

_CLASS_OF = {grpc.StatusCode[error.status]: error for error in ERRORS}


class WireStatus(grpc.Status):
    """The status object that `context.abort_with_status` takes."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        trailing_metadata: tuple[tuple[str, str | bytes], ...],
    ) -> None:
        self.code = code
        self.details = details
        self.trailing_metadata = trailing_metadata


def code_of(error: StrataError) -> grpc.StatusCode:
    """Returns the status code an error is sent with."""
    return grpc.StatusCode[error.status]


def to_status(
    error: StrataError, *, trailing: Iterable[tuple[str, str | bytes]] = ()
) -> grpc.Status:
    """Returns the status that carries the error to the caller.

    Args:
        error: The error.
        trailing: Further trailing metadata.
    """
    code = code_of(error)
    message = _clip(error.message, _MAX_MESSAGE_BYTES)
    number: int = code.value[0]
    rich = status_pb2.Status(code=number, message=message, details=_details(error))
    return WireStatus(code, message, ((DETAILS_KEY, rich.SerializeToString()), *trailing))


def from_rpc_error(error: grpc.aio.AioRpcError) -> StrataError:
    """Returns the error of the tree for a failed call.

    A status without our details (sent by gRPC itself, a proxy, another server) gives the class of
    the status with its default reason. Its message has no addresses of services, because callers
    see it; the original text is in `StrataError.detail`.
    """
    code = error.code()
    message = error.details() or code.name
    rich = _rich_status(error.trailing_metadata())
    if rich is None:
        answered = bool(error.initial_metadata() or error.trailing_metadata())
        return _of_transport(code, message, answered=answered)
    kind = _CLASS_OF.get(code, InternalError)
    reason: Reason | None = None
    metadata: dict[str, str] = {}
    violations: tuple[FieldViolation, ...] = ()
    retry_after: float | None = None
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in rich.details:
        if _unpack(detail, info):
            metadata = dict(info.metadata)
            if info.domain == DOMAIN and info.reason in Reason.__members__:
                reason = Reason(info.reason)
        elif _unpack(detail, bad):
            violations = tuple(
                FieldViolation(violation.field, violation.description)
                for violation in bad.field_violations
            )
        elif _unpack(detail, retry):
            retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    if reason is None:
        reason = _guess(kind, code, message)
    return _build(kind, message, reason, metadata, violations, retry_after)


def _of_transport(code: grpc.StatusCode, text: str, *, answered: bool) -> StrataError:
    """Returns the error for a status that was not sent by a Strata service.

    Args:
        code: The status code.
        text: Its text.
        answered: Metadata of a peer came with it.
    """
    unsent = (
        code is grpc.StatusCode.UNAVAILABLE and not answered and _UNSENT.match(text) is not None
    )
    if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) and (
        text == FAILED_WRITE or _BROKEN.search(text)
    ):
        code = grpc.StatusCode.UNAVAILABLE
    message = text
    if code is grpc.StatusCode.CANCELLED:
        # For a call that this side cancels grpc.aio raises `asyncio.CancelledError`. So the peer
        # is stopping, and gRPC ended the call there, before or while a method handled it.
        code, message = grpc.StatusCode.UNAVAILABLE, _PLAIN[code]
    elif code is grpc.StatusCode.UNAVAILABLE:
        message = _PLAIN[code]
    elif _ADDRESS.search(text):
        message = _PLAIN.get(code, "A service that the call needs failed.")
    kind = _CLASS_OF.get(code, InternalError)
    error = _build(kind, message, _guess(kind, code, text), {}, (), None)
    error.unsent, error.lost = unsent, code in _LOST and not unsent
    error.detail = text if message != text else ""
    return error


def _build(
    kind: type[StrataError],
    message: str,
    reason: Reason,
    metadata: dict[str, str],
    violations: tuple[FieldViolation, ...],
    retry_after: float | None,
) -> StrataError:
    return kind(
        message,
        reason=reason,
        metadata=metadata,
        violations=violations,
        retry_after=retry_after,
    )


def _guess(kind: type[StrataError], code: grpc.StatusCode, message: str) -> Reason:
    # gRPC refuses oversized messages with this text only.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return Reason.MESSAGE_TOO_LARGE
    return kind.default_reason


def _rich_status(trailing: Any) -> status_pb2.Status | None:
    for key, value in trailing or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _unpack(detail: any_pb2.Any, into: Any) -> bool:
    try:
        return bool(detail.Unpack(into))
    except DecodeError:
        return False


def _details(error: StrataError) -> list[any_pb2.Any]:
    details: list[any_pb2.Any] = []
    service = _MAX_DETAILS_BYTES
    if error.reason is not Reason.UNSPECIFIED:
        info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN)
        service -= info.ByteSize() + 64
        for key, value in error.metadata.items():
            text = _clip(value, _MAX_VALUE_BYTES)
            size = len(key) + len(text.encode()) + 8
            if size <= service:
                service -= size
                info.metadata[key] = text
        details.append(_pack(info))
    if error.retry_after is not None:
        details.append(_pack(_retry_info(error.retry_after)))
    bad = error_details_pb2.BadRequest()
    for violation in error.violations:
        field = _clip(violation.field, _MAX_VALUE_BYTES)
        description = _clip(violation.description, _MAX_VALUE_BYTES)
        size = len(field.encode()) + len(description.encode()) + 8
        if size > service:
            break
        service -= size
        bad.field_violations.add(field=field, description=description)
    if bad.field_violations:
        details.append(_pack(bad))
    return details


def _retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    fraction, whole = math.modf(min(max(seconds, 0.0), _RETRY_INFO_LIMIT_S))
    delay = duration_pb2.Duration(seconds=int(whole), nanos=int(fraction * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)


def _pack(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _clip(text: str, limit: int) -> str:
    """Truncates to `limit` UTF-8 bytes and removes unpaired surrogates, which have no encoding."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode("utf-8", "ignore") + "..."
