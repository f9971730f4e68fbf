"""Requests, results and errors of JSON-RPC, as A2A uses it."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import grpc
from a2a.utils.error_handlers import build_error_details
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from starlette.responses import JSONResponse, Response

from strata.gateway.http.errors import code_of_status, http_status_of
from strata.protocol.errors import Reason, StrataError
from strata.protocol.status import code_of
from strata.shared.json_text import JsonTextError, parse_request_json

_VERSION = "2.0"
_KINDS: dict[grpc.StatusCode, type[A2AError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidParamsError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidParamsError,
    grpc.StatusCode.NOT_FOUND: InvalidParamsError,
    grpc.StatusCode.ALREADY_EXISTS: InvalidParamsError,
    grpc.StatusCode.FAILED_PRECONDITION: UnsupportedOperationError,
    grpc.StatusCode.ABORTED: UnsupportedOperationError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedOperationError,
}
_NO_TASK = {Reason.RUN_NOT_FOUND, Reason.RUN_EVENTS_DELETED, Reason.APPROVAL_NOT_FOUND}
# Clients and proxies act on these statuses; all other errors have the status 200, as usual for
# JSON-RPC.
_WITH_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A request.

    Attributes:
        id: Its id, which the response repeats.
        method: Name of the method.
        params: The parameters.
    """

    id: str | int | None
    method: str
    params: dict[str, Any]


class RpcFailureError(Exception):
    """A request that failed.

    Args:
        error: The error.
        request_id: The id of the request, as far as it is known.
    """

    def __init__(self, error: A2AError, request_id: str | int | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.request_id = request_id


def parse_rpc_request(body: bytes) -> RpcRequest:
    """Returns a request.

    Raises:
        RpcFailureError: The body is not a request of JSON-RPC 2.0, or several of them.
    """
    try:
        document = parse_request_json(body)
    except JsonTextError as error:
        problem = JSONParseError(f"The body is not valid JSON: {error}.")
        raise RpcFailureError(problem) from error
    if not isinstance(document, dict):
        raise RpcFailureError(
            InvalidRequestError("The body must be one JSON object; batches are not supported.")
        )
    request_id = document.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
        raise RpcFailureError(InvalidRequestError("'id' must be a string, an integer or null."))
    method, params = document.get("method"), document.get("params", {})
    if document.get("jsonrpc") != _VERSION or not isinstance(method, str):
        raise RpcFailureError(
            InvalidRequestError(f'A request has "jsonrpc": "{_VERSION}" and a method.'), request_id
        )
    if not isinstance(params, dict):
        raise RpcFailureError(InvalidParamsError("'params' must be an object."), request_id)
    return RpcRequest(request_id, method, params)


def success(request_id: str | int | None, result: Any) -> dict[str, Any]:
    """Returns the response to a request that succeeded."""
    return {"jsonrpc": _VERSION, "id": request_id, "result": result}


def failure(request_id: str | int | None, error: A2AError) -> dict[str, Any]:
    """Returns the response to a request that failed."""
    error_object = {
        "code": JSON_RPC_ERROR_CODE_MAP.get(type(error), JSON_RPC_ERROR_CODE_MAP[InternalError]),
        "message": str(error),
        "data": build_error_details(error),
    }
    return {"jsonrpc": _VERSION, "id": request_id, "error": error_object}


def a2a_error(error: StrataError) -> A2AError:
    """Returns the error of the protocol for a failed call of the gateway."""
    reason: dict[str, Any] = {"reason": error.reason.value}
    if error.reason in _NO_TASK:
        return TaskNotFoundError(error.message, reason)
    kind = _KINDS.get(code_of(error), InternalError)
    if kind is InvalidParamsError and error.violations:
        reason["errors"] = [
            {"field": violation.field, "message": violation.description}
            for violation in error.violations
        ]
    return kind(error.message, reason)


def refusal(request_id: str | int | None, error: StrataError) -> Response:
    """Returns the HTTP response to a request for which a call of the gateway failed."""
    code = code_of(error)
    headers = {"www-authenticate": "Bearer"} if code is grpc.StatusCode.UNAUTHENTICATED else None
    status = HTTPStatus.OK
    if code in _WITH_STATUS or error.reason is Reason.AGENT_NOT_FOUND:
        status = HTTPStatus(http_status_of(code_of_status(code)))
    return JSONResponse(failure(request_id, a2a_error(error)), status_code=status, headers=headers)
