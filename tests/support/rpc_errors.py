"""Errors of gRPC calls as clients receive them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2


def status_of(trailing: Any) -> status_pb2.Status:
    for key, value in trailing or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            return status_pb2.Status.FromString(value)
    raise AssertionError("no details")


def rpc_error(status: Any) -> grpc.aio.AioRpcError:
    """Returns the error that a client gets for a status."""
    metadata = grpc.aio.Metadata(*(status.trailing_metadata or ()))
    return grpc.aio.AioRpcError(status.code, None, metadata, details=status.details)


def reason(error: grpc.aio.AioRpcError) -> str:
    info = error_details_pb2.ErrorInfo()
    assert status_of(error.trailing_metadata()).details[0].Unpack(info)
    assert info.domain == "strata"
    return str(info.reason)


async def error_of_call(
    channel: Any, path: str, metadata: Sequence[tuple[str, str]] = ()
) -> grpc.aio.AioRpcError | None:
    """Calls a unary or streaming method with an empty request; returns its error, or None.

    On the wire the kinds of methods differ only in the number of messages. The message and the end
    of the stream are sent together: if the server answered before it had read everything, a
    separate write would fail and grpc.aio would raise another error.
    """
    try:
        async for _ in channel.unary_stream(path)(b"", metadata=metadata, timeout=20):
            pass
    except grpc.aio.AioRpcError as error:
        return error
    return None
