"""Errors of the gateway in the form of the Connect protocol."""

from __future__ import annotations

from base64 import b64encode
from http import HTTPStatus
from typing import Any

import grpc
import grpc.aio
from connectrpc.code import Code
from connectrpc.errors import ConnectError, ErrorDetail
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from protobuf import message_to_json_value
from protobuf.wkt import Any as AnyMessage
from protobuf.wkt import Struct

from strata.protocol.status import DETAILS_KEY

# The names differ in one letter.
_CODES = {code.name.replace("CANCELED", "CANCELLED"): code for code in Code}
# https://connectrpc.com/docs/protocol#error-codes; 499 has no name.
_HTTP_STATUS = {
    Code.CANCELED: 499,
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    Code.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    Code.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    Code.ABORTED: HTTPStatus.CONFLICT,
    Code.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    Code.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
}


def code_of_status(status: grpc.StatusCode) -> Code:
    """Returns the code of the Connect protocol for a status of gRPC."""
    return _CODES.get(status.name, Code.UNKNOWN)


def http_status_of(code: Code) -> int:
    """Returns the HTTP status of a response with this code."""
    return int(_HTTP_STATUS.get(code, HTTPStatus.INTERNAL_SERVER_ERROR))


def error_body(error: ConnectError) -> dict[str, Any]:
    """Returns the JSON of an error, as the Connect protocol writes it."""
    details = []
    for detail in error.details:
        content: dict[str, Any] = {
            "type": detail.type_name,
            "value": b64encode(detail.message_bytes).decode().rstrip("="),
        }
        if (readable := detail.value()) is not None:
            content["debug"] = message_to_json_value(readable)
        details.append(content)
    body = {"code": error.code.value, "message": error.message}
    return {**body, "details": details} if details else body


def connect_error(error: grpc.aio.AioRpcError) -> ConnectError:
    """Returns the error of the Connect protocol for a status, with its details."""
    code = code_of_status(error.code())
    raw = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
    status = status_pb2.Status.FromString(raw) if isinstance(raw, bytes) else status_pb2.Status()
    return ConnectError(
        code, error.details() or code.value, [ReadableDetail(detail) for detail in status.details]
    )


class ReadableDetail(ErrorDetail):
    """A detail of an error, which JSON clients also see as text (the ``debug`` of the protocol).

    Args:
        detail: The detail, packed.
    """

    def __init__(self, detail: Any) -> None:
        super().__init__(AnyMessage(type_url=detail.type_url, value=detail.value))
        self._readable = _readable(detail)

    def value(self, *_: Any) -> Any:
        """Returns the fields of the detail, by name."""
        return self._readable


def _readable(detail: Any) -> Struct | None:
    for kind in (
        error_details_pb2.ErrorInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.RetryInfo,
    ):
        message = kind()
        try:
            if detail.Unpack(message):
                return Struct.from_json(json_format.MessageToJson(message))
        except DecodeError:
            return None
    return None
