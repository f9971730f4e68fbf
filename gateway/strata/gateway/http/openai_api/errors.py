"""Errors as OpenAI's API sends them."""

from __future__ import annotations

import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import grpc
import grpc.aio

from strata.api.common.v1 import usage_pb2
from strata.gateway.http.errors import code_of_status, http_status_of
from strata.protocol.errors import Reason, StrataError
from strata.protocol.status import from_rpc_error

SHOULD_RETRY = "x-should-retry"
"""Header that controls whether the SDKs send a failed request again."""
RETRY_AFTER = "retry-after"
"""Header with the seconds after which a refused request may succeed."""

_TYPES: dict[int, str] = {
    HTTPStatus.BAD_REQUEST: "invalid_request_error",
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.METHOD_NOT_ALLOWED: "invalid_request_error",
    HTTPStatus.CONFLICT: "conflict_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "invalid_request_error",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "invalid_request_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class ApiError(Exception):
    """An error for the client.

    Args:
        message: The problem, as text for a person.
        status: HTTP status.
        param: The parameter of the request that is wrong.
        code: A name for programs.
        sent: Whether the agent has what the request sent, so that the request must not be repeated.
        retry_after_s: Seconds after which the request may succeed, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = HTTPStatus.BAD_REQUEST,
        param: str | None = None,
        code: str | None = None,
        sent: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.sent = sent
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response, without its content type."""
        if self.sent:
            # The SDKs repeat requests that failed, unless they are told not to.
            return {SHOULD_RETRY: "false"}
        if self.retry_after_s is not None:
            return {RETRY_AFTER: str(math.ceil(self.retry_after_s))}
        return {}

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the response."""
        kind = _TYPES.get(self.status, "server_error")
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


class RunFailedError(ApiError):
    """A run that ended without a reply.

    Args:
        message: The problem, as text for a person.
        status: HTTP status.
        code: A name for programs.
        usage: Tokens of the run.
        cancelled: Whether it was cancelled.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        usage: usage_pb2.Usage | None = None,
        cancelled: bool = False,
    ) -> None:
        super().__init__(message, status=status, code=code, sent=True)
        self.usage = usage
        self.cancelled = cancelled


def of_call(
    error: grpc.aio.AioRpcError,
    param: str | None = None,
    *,
    param_of: Callable[[str], str] | None = None,
) -> ApiError:
    """Returns the error for a failed call of the gateway.

    Args:
        error: The error.
        param: The parameter that the call was about.
        param_of: Returns the parameter that a field of the call's request was made of.
    """
    strata_error: StrataError = from_rpc_error(error)
    message = strata_error.message
    if strata_error.reason is Reason.APPROVAL_PENDING:
        message = (
            f"The conversation waits for an answer to {strata_error.metadata['approval_id']}. Send"
            " the results of its tool calls if your program makes them; otherwise answer it with"
            " RunService.RespondToApproval, `strata approvals` or the console."
        )
    if param_of is not None and strata_error.violations:
        problems = [
            (param_of(violation.field), violation.description)
            for violation in strata_error.violations
        ]
        param = problems[0][0]
        message = "; ".join(f"'{name}' is not valid: {problem}" for name, problem in problems) + "."
    return ApiError(
        message,
        status=http_status_of(code_of_status(error.code())),
        param=param,
        code=strata_error.reason.value.lower(),
        retry_after_s=strata_error.retry_after,
    )
