"""The details of errors on the wire."""

from __future__ import annotations

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


def reason(error: grpc.aio.AioRpcError) -> str:
    info = error_details_pb2.ErrorInfo()
    assert status_of(error.trailing_metadata()).details[0].Unpack(info)
    assert info.domain == "strata"
    return str(info.reason)
