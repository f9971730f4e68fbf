"""The attributes of spans of RPCs, by the semantic conventions of OpenTelemetry for gRPC."""

from __future__ import annotations

from functools import lru_cache

import grpc
import grpc.aio

from strata.protocol.final_status import known_result
from strata.shared.context import Caller
from strata.shared.tracing.spans import Attributes, Span

# The other codes are caused by the caller, or are not failures of the server, such as a cancelled
# call.
_SERVER_FAILED = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


@lru_cache(maxsize=1024)
def rpc_attributes(path: str) -> Attributes:
    """Returns the attributes of a method.

    Args:
        path: ``/package.Service/Method``, or another label.
    """
    service, _, method = path.lstrip("/").rpartition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def end_server_span(span: Span, code: grpc.StatusCode, caller: Caller | None) -> None:
    """Ends the span of a served call.

    Args:
        span: The span.
        code: How the call ended.
        caller: The caller, if known.
    """
    attributes = span.attributes
    attributes["rpc.grpc.status_code"] = code.value[0]
    if caller is not None:
        if caller.project_id:
            attributes["strata.project.id"] = caller.project_id
        if caller.run_id:
            attributes["strata.run.id"] = caller.run_id
    if code in _SERVER_FAILED:
        span.fail(code.name)
    span.end()


def end_client_span(span: Span, call: grpc.aio.Call) -> None:
    """Ends the span of a call, which has ended."""
    code: grpc.StatusCode = known_result(call.code())
    span.attributes["rpc.grpc.status_code"] = code.value[0]
    if code is not grpc.StatusCode.OK:
        span.fail(code.name)
    span.end()
