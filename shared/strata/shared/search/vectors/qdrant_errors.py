"""Maps failures of the Qdrant client to the error tree."""

import grpc
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from strata.protocol.errors import InternalError, StrataError, UnavailableError

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
    """The engine does not answer; the circuit breaker counts this error."""


def status_of(error: BaseException) -> grpc.StatusCode | None:
    """Returns the gRPC status of an error; None if it has none."""
    return error.code() if isinstance(error, grpc.aio.AioRpcError) else None


def is_cut_connection(error: BaseException) -> bool:
    """Returns whether the connection was lost, so that the call may succeed at once."""
    return status_of(error) is grpc.StatusCode.UNAVAILABLE


def to_strata_error(error: BaseException, operation: str) -> StrataError:
    """Returns the error to raise; raise it from the client's error, which is for the log."""
    metadata = {"dependency": "vector index", "operation": operation}
    status = status_of(error)
    missing = status is grpc.StatusCode.NOT_FOUND
    if missing or (isinstance(error, UnexpectedResponse) and error.status_code == 404):
        return UnavailableError(
            "the vector collection does not exist; it has to be rebuilt from the database",
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
