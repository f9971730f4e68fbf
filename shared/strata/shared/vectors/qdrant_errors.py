"""Failures of the Qdrant client as errors of ours."""

import grpc
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from strata.shared.errors import InternalError, StrataError, UnavailableError

CLIENT_ERRORS = (grpc.RpcError, QdrantException, ApiException, TimeoutError, OSError)

_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class EngineDownError(UnavailableError):
    """The engine does not answer: counted by the circuit breaker."""


def status_of(error: BaseException) -> grpc.StatusCode | None:
    """The gRPC status of an error, if it is one."""
    return error.code() if isinstance(error, grpc.aio.AioRpcError) else None


def is_cut_connection(error: BaseException) -> bool:
    """Whether the same call may succeed right away: the connection was cut or renewed."""
    return status_of(error) is grpc.StatusCode.UNAVAILABLE


def to_strata_error(error: BaseException, operation: str) -> StrataError:
    """The error to raise; the engine's own words are kept as its cause, for the log."""
    metadata = {"dependency": "vector index", "operation": operation}
    status = status_of(error)
    missing = status is grpc.StatusCode.NOT_FOUND
    if missing or (isinstance(error, UnexpectedResponse) and error.status_code == 404):
        return UnavailableError(
            "the vector collection is not there; it has to be built again from the database",
            metadata={**metadata, "cause": "collection_missing"},
            retry_after=5.0,
        )
    if status in _REFUSALS or isinstance(error, UnexpectedResponse):
        return InternalError(f"the vector index refuses the operation {operation}")
    if isinstance(error, ResourceExhaustedResponse):
        return EngineDownError(
            "the vector index is overloaded",
            metadata=metadata,
            retry_after=float(error.retry_after_s),
        )
    return EngineDownError("the vector index does not answer", metadata=metadata, retry_after=1.0)
