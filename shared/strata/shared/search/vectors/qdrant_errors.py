"""Maps failures of calls of Qdrant to the error tree."""

import grpc

from strata.protocol.errors import InternalError, StrataError, UnavailableError

CLIENT_ERRORS = (grpc.RpcError, TimeoutError, OSError)

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
    """Returns the error to raise; raise it from the gRPC error, so that the log shows both."""
    metadata = {"dependency": "vector index", "operation": operation}
    status = status_of(error)
    if status is grpc.StatusCode.NOT_FOUND:
        return UnavailableError(
            "the vector collection does not exist; it has to be rebuilt from the database",
            metadata={**metadata, "cause": "collection_missing"},
            retry_after=5.0,
        )
    if status is grpc.StatusCode.DATA_LOSS:
        # One collection, and not the engine: the circuit breaker stays closed for the others.
        damaged = UnavailableError(
            "the files of a vector collection are damaged; the log names the remedy",
            metadata={**metadata, "cause": "collection_damaged"},
            retry_after=5.0,
        )
        damaged.detail = (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else ""
        return damaged
    if status in _REFUSALS:
        return InternalError(f"the vector index refuses the operation {operation}")
    if (seconds := _retry_after(error)) is not None:
        return EngineDownError(
            "the vector index is overloaded", metadata=metadata, retry_after=seconds
        )
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # The engine answers, and searches may succeed.
        return UnavailableError(
            "the vector index lacks the space for the operation",
            metadata=metadata,
            retry_after=1.0,
        )
    return EngineDownError("the vector index does not answer", metadata=metadata, retry_after=1.0)


def _retry_after(error: BaseException) -> float | None:
    """Returns the pause in seconds that an overloaded engine asks for; None if it asks for none."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    for name, value in error.trailing_metadata():
        if name == "retry-after":
            return _positive_seconds(value)
    return None


def _positive_seconds(text: str | bytes) -> float | None:
    try:
        seconds = int(text)
    except ValueError:
        return None
    return float(seconds) if seconds > 0 else None
