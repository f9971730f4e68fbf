"""Errors of requests to the embedded engine, with their gRPC statuses."""

from __future__ import annotations

import grpc

_ENGINE_FAULTS = (
    "Service runtime error",
    "Service internal error",
    "Inconsistent storage",
    "Out of memory",
    "Operation cancelled",
    "Timeout",
    "IO Error",
)


class VectorsError(Exception):
    """A request failed; `status` is its gRPC status."""

    status = grpc.StatusCode.INTERNAL


class UnsupportedError(VectorsError):
    """A part of Qdrant's API that the embedded engine does not offer."""

    status = grpc.StatusCode.UNIMPLEMENTED

    def __init__(self, feature: str) -> None:
        super().__init__(f"the embedded vector engine does not support {feature}")


class BadRequestError(VectorsError):
    """The request is malformed or does not fit the collection."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class MissingError(VectorsError):
    """A collection or alias that does not exist."""

    status = grpc.StatusCode.NOT_FOUND


class ExistsError(VectorsError):
    """A collection or alias whose name is taken."""

    status = grpc.StatusCode.ALREADY_EXISTS


class FullDiskError(VectorsError):
    """A write that could fill the disk."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class DamagedError(VectorsError):
    """A collection whose files could not be loaded."""

    status = grpc.StatusCode.DATA_LOSS


def from_engine(error: BaseException) -> VectorsError:
    """Maps an error of the engine by its text, because the engine has one type for all errors.

    A panic of the engine is not an `Exception`, but must be reported to the caller, too.
    """
    if isinstance(error, VectorsError):
        return error
    text = str(error)[:500]
    if isinstance(error, (Exception,)) and not text.startswith(_ENGINE_FAULTS):
        return BadRequestError(text)
    return VectorsError(text)
