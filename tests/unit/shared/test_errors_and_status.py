"""The error classes, the reasons, and the conversion to and from a gRPC status."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from rpc_errors import rpc_error
from strata.api.errors.v1 import error_reason_pb2
from strata.protocol.errors import (
    ERRORS,
    DeadlineExceededError,
    FailedPreconditionError,
    FieldViolation,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    ResourceExhaustedError,
    StrataError,
    UnavailableError,
)
from strata.protocol.status import DETAILS_KEY, from_rpc_error, to_status

TRAILING = (
    ("x-request-id", "r" * 64),
    ("x-strata-time", "1700000000.000"),
    ("x-strata-host", "h" * 64),
)


def round_trip(error: StrataError) -> StrataError:
    return from_rpc_error(rpc_error(to_status(error)))


def test_reasons_equal_the_contract() -> None:
    declared = {
        name.removeprefix("ERROR_REASON_")
        for name in error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name
    }
    assert {reason.name for reason in Reason} == declared
    assert all(reason.name == reason.value for reason in Reason)


def test_there_is_one_error_class_for_each_status_but_ok_and_unknown() -> None:
    statuses = [error.status for error in ERRORS]
    everything = {code.name for code in grpc.StatusCode} - {"OK", "UNKNOWN"}
    assert len(statuses) == len(set(statuses))
    assert set(statuses) == everything


def test_a_status_of_many_reasons_needs_one_named() -> None:
    kinds: tuple[Callable[[str], StrataError], ...] = (
        NotFoundError,  # type: ignore[assignment]
        FailedPreconditionError,
    )
    for kind in kinds:
        with pytest.raises(TypeError):
            kind("no reason")


def test_an_unspecified_reason_is_never_sent() -> None:
    status = to_status(NotFoundError("gone", reason=Reason.UNSPECIFIED))
    details = dict(status.trailing_metadata)[DETAILS_KEY]
    assert isinstance(details, bytes)
    assert not status_pb2.Status.FromString(details).details


texts = st.text(max_size=60)


@given(
    kind=st.sampled_from(ERRORS),
    message=st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100),
    reason=st.sampled_from([reason for reason in Reason if reason is not Reason.UNSPECIFIED]),
    metadata=st.dictionaries(
        st.from_regex(r"[a-z_]{1,20}", fullmatch=True),
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60),
        max_size=4,
    ),
    violations=st.lists(st.tuples(st.just("field"), st.text("äb", max_size=60)), max_size=5),
    retry_after=st.none() | st.floats(min_value=0, max_value=3600),
)
def test_values_within_the_limits_survive_a_round_trip(
    kind: type[StrataError],
    message: str,
    reason: Reason,
    metadata: dict[str, str],
    violations: list[tuple[str, str]],
    retry_after: float | None,
) -> None:
    error = kind(
        message,
        reason=reason,
        metadata=metadata,
        violations=[FieldViolation(*violation) for violation in violations],
        retry_after=retry_after,
    )
    back = round_trip(error)
    assert type(back) is kind
    assert (back.message, back.reason) == (message, reason)
    assert dict(back.metadata) == metadata
    assert back.violations == error.violations
    if retry_after is None:
        assert back.retry_after is None
    else:
        assert back.retry_after == pytest.approx(retry_after, abs=1e-6)


@given(
    message=st.text(max_size=3000),
    metadata=st.dictionaries(st.text("ab", max_size=5), st.text(max_size=2000), max_size=30),
    violations=st.lists(st.text(max_size=1000), max_size=60),
)
def test_the_details_always_fit_into_the_metadata_limit_of_a_peer(
    message: str, metadata: dict[str, str], violations: list[str]
) -> None:
    error = InvalidArgumentError(
        message,
        metadata=metadata,
        violations=[FieldViolation(violation[:50], violation) for violation in violations],
    )
    status = to_status(error, trailing=TRAILING)
    details = dict(status.trailing_metadata)[DETAILS_KEY]
    assert isinstance(details, bytes)
    # Details go as base64, the message percent-encoded at up to three bytes for one.
    assert len(details) * 4 / 3 + len(status.details.encode()) * 3 < 7500
    assert round_trip(error).reason is Reason.INVALID_FIELD


def test_a_status_without_details_gets_a_matching_reason() -> None:
    def foreign(code: grpc.StatusCode, text: str) -> StrataError:
        return from_rpc_error(grpc.aio.AioRpcError(code, None, None, details=text))

    down = foreign(grpc.StatusCode.UNAVAILABLE, "failed to connect")
    assert (type(down), down.reason) == (UnavailableError, Reason.DEPENDENCY_UNAVAILABLE)
    large = foreign(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (5 vs 4)")
    assert (type(large), large.reason) == (ResourceExhaustedError, Reason.MESSAGE_TOO_LARGE)
    assert foreign(grpc.StatusCode.NOT_FOUND, "?").reason is Reason.UNSPECIFIED
    assert type(foreign(grpc.StatusCode.UNKNOWN, "?")) is InternalError


def test_invalid_and_foreign_details_are_ignored() -> None:
    info = error_details_pb2.ErrorInfo(reason="AGENT_NOT_FOUND", domain="elsewhere.example")
    rich = status_pb2.Status(code=5, message="x")
    rich.details.add().Pack(info)
    for raw in (rich.SerializeToString(), b"\xff\xff"):
        metadata = grpc.aio.Metadata((DETAILS_KEY, raw))
        error = grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, None, metadata, details="x")
        assert from_rpc_error(error).reason is Reason.UNSPECIFIED


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: ipv4:10.1.2.3:7603: refused",
            UnavailableError,
        ),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", UnavailableError),
        (grpc.StatusCode.UNAVAILABLE, "DNS resolution failed for recall:7603", UnavailableError),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", UnavailableError),
        # A write of an upload fails in grpc.aio as the connection breaks.
        (grpc.StatusCode.INTERNAL, "Internal error from Core", UnavailableError),
        (grpc.StatusCode.UNKNOWN, "Stream removed (ipv6:[::1]:7605)", UnavailableError),
        (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "Deadline exceeded waiting for dns:///recall:7603",
            DeadlineExceededError,
        ),
    ],
)
def test_messages_of_the_transport_are_not_shown_to_callers(
    code: grpc.StatusCode, details: str, kind: type[StrataError]
) -> None:
    empty = grpc.aio.Metadata()
    error = from_rpc_error(grpc.aio.AioRpcError(code, empty, empty, details=details))
    assert type(error) is kind
    assert error.lost is not error.unsent
    status = to_status(error)
    for secret in ("10.1.2.3", "7603", "7605", "::1", "recall", "RST_STREAM", "Socket"):
        assert secret not in status.details
    # The log contains them.
    assert details in repr(error)


def transport_error(
    code: grpc.StatusCode, details: str, *trailing: tuple[str, str]
) -> grpc.aio.AioRpcError:
    empty = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, empty, grpc.aio.Metadata(*trailing), details=details)


UNSENT = (
    "connections to all backends failing; last error: UNKNOWN: ipv4:10.1.2.3:7603: refused",
    "failed to connect to all addresses; last error: ipv4:10.1.2.3:7603: refused",
    "errors resolving recall:7603: [field:hostname lookup error:Domain name not found]",
    "DNS resolution failed for recall:7603",
    "empty address list: dns:///recall:7603",
    "Stream removed (RST_STREAM (Received RST_STREAM with error code 7))",
)


@pytest.mark.parametrize("details", UNSENT)
def test_a_call_without_a_connection_counts_as_not_sent(details: str) -> None:
    error = from_rpc_error(transport_error(grpc.StatusCode.UNAVAILABLE, details))
    assert isinstance(error, UnavailableError)
    assert (error.unsent, error.lost) == (True, False)


@pytest.mark.parametrize(
    ("code", "details", "trailing"),
    [
        # A peer may forward the message of its own transport.
        *((grpc.StatusCode.UNAVAILABLE, details, [("server", "proxy")]) for details in UNSENT),
        *((grpc.StatusCode.UNAVAILABLE, f"upstream: {details}", []) for details in UNSENT),
        *((grpc.StatusCode.INTERNAL, details, []) for details in UNSENT),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", []),
        (grpc.StatusCode.UNAVAILABLE, "Stream removed (ping timeout)", []),
        (
            grpc.StatusCode.UNAVAILABLE,
            "Stream removed (RST_STREAM (Received RST_STREAM with error code 8))",
            [],
        ),
        (grpc.StatusCode.CANCELLED, "CANCELLED", []),
        (grpc.StatusCode.CANCELLED, UNSENT[0], []),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", []),
    ],
)
def test_any_other_broken_call_may_have_had_an_effect(
    code: grpc.StatusCode, details: str, trailing: list[tuple[str, str]]
) -> None:
    error = from_rpc_error(transport_error(code, details, *trailing))
    assert (error.unsent, error.lost) == (False, True)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_answer_of_a_service_is_neither_lost_nor_unsent(kind: type[StrataError]) -> None:
    error = round_trip(kind(UNSENT[0], reason=Reason.SHUTTING_DOWN))
    assert (error.unsent, error.lost) == (False, False)
