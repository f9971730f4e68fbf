"""Which errors the fault tests attribute to a service that is down."""

from __future__ import annotations

import grpc
import grpc.aio

from faults.load import is_passing
from strata.protocol.errors import CancelledError, StrataError
from strata.protocol.status import to_status


def rpc_error(code: grpc.StatusCode, sent: StrataError | None = None) -> grpc.aio.AioRpcError:
    """Returns an error of gRPC itself or, with `sent`, one that a service of Strata has sent."""
    trailing = () if sent is None else to_status(sent).trailing_metadata
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), code.name)


def test_a_call_cancelled_by_a_stopping_server_is_not_a_defect() -> None:
    assert is_passing(rpc_error(grpc.StatusCode.CANCELLED))
    assert is_passing(rpc_error(grpc.StatusCode.UNAVAILABLE))


def test_a_cancellation_sent_by_a_service_is_a_defect() -> None:
    sent = CancelledError("The call was cancelled.")
    assert not is_passing(rpc_error(grpc.StatusCode.CANCELLED, sent))


def test_an_error_of_a_service_is_a_defect() -> None:
    assert not is_passing(rpc_error(grpc.StatusCode.INTERNAL))
    assert not is_passing(rpc_error(grpc.StatusCode.NOT_FOUND))
