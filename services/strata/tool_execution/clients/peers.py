"""Channels to other services that retry calls and distinguish failures from unknown outcomes.

All calls of built-in tools to other services use these channels. Calls are retried while a service
is unavailable, such as during a restart, if the contract allows it (`idempotency_level`: the method
takes an idempotency key, or changes nothing). After the last attempt, the error states whether the
call may have had an effect. It names the service, never an address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import MethodOptions

from strata.protocol.backoff import Backoff
from strata.protocol.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    StrataError,
    UnavailableError,
    is_transient,
)
from strata.protocol.shapes import ClientMethod, WrappedChannel
from strata.shared.context import current
from strata.shared.logs import get_logger

PATIENCE_S = 15.0
"""Seconds for which a call without a deadline is retried."""
_log = get_logger(__name__)


class LostAnswerError(UnavailableError):
    """A call with side effects was sent, and it is unknown whether it had its effect."""


class PeerChannel(WrappedChannel):
    """A channel to a service that retries unary calls until their deadline.

    It retries calls that failed with UNAVAILABLE or DEADLINE_EXCEEDED, or with the reason
    OVERLOADED, if the contract marks the method as repeatable. Streams are not retried.

    Args:
        inner: The channel that makes the calls; it raises errors of `strata.protocol.errors`.
        name: Name of the service in error messages, such as "core memory".
    """

    def __init__(self, inner: grpc.aio.Channel, name: str) -> None:
        super().__init__(inner)
        self._name = name

    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method.

        Unary calls raise LostAnswerError if they may have had an effect, and UnavailableError if
        they certainly had none.
        """
        inner = method.open_on(self._inner)
        if method.shape.streaming:
            return inner
        return _RetryingCall(inner, self._name, _idempotency(method.path))

    async def close(self, grace: float | None = None) -> None:
        """Does nothing: the inner channel belongs to the process."""


def backoff(seconds: float | None = None) -> Backoff:
    """Returns the pauses between attempts of one call of a tool.

    Args:
        seconds: Time for all attempts; None takes the deadline of the context, or PATIENCE_S.
    """
    now, deadline = asyncio.get_running_loop().time(), current().deadline
    if seconds is None and deadline is not None:
        return Backoff(deadline)
    return Backoff(now + (PATIENCE_S if seconds is None else seconds))


class _RetryingCall:
    def __init__(self, inner: Any, name: str, idempotency: int) -> None:
        self._inner = inner
        self._name = name
        self._repeats = idempotency in (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)
        self._changes = idempotency != MethodOptions.NO_SIDE_EFFECTS

    def __call__(self, request: Any, **options: Any) -> Awaitable[Any]:
        return self._call(request, options)

    async def _call(self, request: Any, options: dict[str, Any]) -> Any:
        pauses = backoff()
        lost = False
        while True:
            try:
                return await self._inner(request, **options)
            except StrataError as error:
                lost = lost or _is_lost(error)
                if not is_transient(error):
                    raise self._final(error, lost=_is_lost(error)) from error
                if not (self._repeats and await pauses.wait(error)):
                    raise self._final(error, lost=lost) from error

    def _final(self, error: StrataError, *, lost: bool) -> StrataError:
        """Returns the error to raise instead of the last one."""
        if lost and self._changes:
            _log.warning("service did not answer", peer=self._name, reason=error.reason.value)
            return LostAnswerError(f"The {self._name} service gave no answer.")
        # Messages of gRPC itself contain addresses.
        match error:
            case UnavailableError() | CancelledError():
                return UnavailableError(
                    f"The {self._name} service cannot be reached now.",
                    retry_after=error.retry_after,
                )
            case DeadlineExceededError():
                return DeadlineExceededError(f"The {self._name} service did not answer in time.")
            case InternalError():
                return InternalError(f"The {self._name} service failed.")
            case _:
                return error


def _is_lost(error: StrataError) -> bool:
    """Returns whether a failed request may have had an effect."""
    return not error.unsent and isinstance(
        error, UnavailableError | DeadlineExceededError | CancelledError | InternalError
    )


def _idempotency(method: str) -> int:
    name = method.strip("/").replace("/", ".")
    descriptor = descriptor_pool.Default().FindMethodByName(name)
    return int(descriptor.GetOptions().idempotency_level)
