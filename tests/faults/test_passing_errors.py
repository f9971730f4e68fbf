"""Which errors the fault tests attribute to a service that is down."""

from __future__ import annotations

import grpc
import grpc.aio

from faults.load import is_passing
from strata.protocol.errors import CancelledError, StrataError
from strata.protocol.status import to_status


def rpc_error(code: grpc.StatusCode, sent: StrataError | None = None) -> grpc.aio.AioRpcError:
    """Returns an error of gRPC itself, or one with which a service of Strata sends `sent`."""
    trailing = () if sent is None else to_status(sent).trailing_metadata
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), code.name)


def test_a_call_that_a_stopping_server_cut_off_may_be_seen() -> None:
    assert is_passing(rpc_error(grpc.StatusCode.CANCELLED))
    assert is_passing(rpc_error(grpc.StatusCode.UNAVAILABLE))


def test_a_cancellation_that_a_service_sent_is_a_defect() -> None:
    sent = CancelledError("The call was cancelled.")
    assert not is_passing(rpc_error(grpc.StatusCode.CANCELLED, sent))


def test_an_error_of_a_service_is_a_defect() -> None:
    assert not is_passing(rpc_error(grpc.StatusCode.INTERNAL))
    assert not is_passing(rpc_error(grpc.StatusCode.NOT_FOUND))
