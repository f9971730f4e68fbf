"""Repeats calls after transient failures.

gRPC can repeat calls as well, but its retry timer has a race that leaves a call hanging until its
deadline (grpc/grpc#41036).
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from strata.protocol.backoff import FIRST_PAUSE_S, Backoff
from strata.protocol.errors import CancelledError, StrataError, UnavailableError


@dataclass(frozen=True, slots=True)
class RepeatLimits:
    """How often calls are repeated.

    Attributes:
        max_attempts: Maximum number of attempts at a call that fails with UNAVAILABLE.
        first_pause_s: Mean pause before the second attempt, seconds. Later pauses double.
    """

    max_attempts: int = 4
    first_pause_s: float = FIRST_PAUSE_S


DoneCallback = Callable[[Any], None]


class Repeated:
    """Common part of repeated calls of all shapes.

    Args:
        start: Starts an attempt, which ends with the deadline of the whole call.
        method: Path of the method.
        until: Time of the event loop after which no attempt is made.
        limits: Number of attempts and pauses between them.
    """

    def __init__(
        self, start: Callable[[], Any], method: str, until: float, limits: RepeatLimits
    ) -> None:
        self._start = start
        self._method = method
        self._backoff = Backoff(until, first_s=limits.first_pause_s)
        self._attempts_left = limits.max_attempts - 1
        self._pause: asyncio.Future[bool] | None = None
        self._callbacks: list[DoneCallback] = []
        self._readers = 0
        self._final = False
        self._cancelled = False
        self._begin()

    def _take_attempt(self) -> bool:
        """Uses up one of the limited attempts; returns False if there is none left."""
        self._attempts_left -= 1
        return self._attempts_left >= 0

    def _note_repetition(self, error: StrataError) -> bool:
        """Called before a pause; returns whether the error's retry hint is to be waited for."""
        return False

    async def _paused(self, error: StrataError) -> bool:
        """Waits for the next attempt; returns False if there is no time for one."""
        hinted = self._note_repetition(error)
        self._pause = asyncio.ensure_future(self._backoff.wait(error, hinted=hinted))
        try:
            has_time = await self._pause
        except asyncio.CancelledError:
            # By `cancel`, or because the reader was cancelled, which cancels the call.
            self._final = self._cancelled = True
            raise
        finally:
            self._pause = None
        if self._final:
            # Cancelled when the pause had just ended.
            raise asyncio.CancelledError
        return has_time

    def _next(self) -> None:
        """Starts the next attempt."""
        if self._final:
            raise asyncio.CancelledError
        self._begin()
        if self._callbacks:
            self._observe()

    def _begin(self) -> None:
        self._attempt = self._start()

    def _observe(self) -> None:
        """Watches the attempt that is under way for its end."""
        # The attempt must not keep this object alive, which cancels the call when it is dropped.
        held, callbacks = weakref.WeakMethod(self._attempt_ended), self._callbacks

        def ended(attempt: Any) -> None:
            attempt_ended = held()
            if attempt_ended is None:
                _call_back(callbacks, attempt)
            else:
                attempt_ended(attempt)

        self._attempt.add_done_callback(ended)

    def _attempt_ended(self, attempt: Any) -> None:
        # The reader of the call decides whether another attempt follows.
        if attempt is self._attempt and not self._readers:
            self._over()

    def _over(self) -> None:
        """Called when the call has ended and no attempt follows; possibly more than once."""
        _call_back(self._callbacks, self)

    def _stop_reading(self) -> None:
        """Called by a reader when it has a response or an error to return."""
        self._readers -= 1
        if not self._readers and self._attempt.done():
            self._over()

    def cancel(self) -> bool:
        """Cancels the attempt that is under way; there is none after it."""
        self._final = True
        if self._pause is None:
            cancelled = bool(self._attempt.cancel())
        else:
            # Even if the pause has just ended: its reader has not begun another attempt.
            self._pause.cancel()
            cancelled = True
        self._cancelled = self._cancelled or cancelled
        if not self._readers:
            self._over()
        return cancelled

    def cancelled(self) -> bool:
        """Whether the call, or its latest attempt, was cancelled."""
        return self._cancelled or bool(self._attempt.cancelled())

    def done(self) -> bool:
        """Whether the latest attempt has ended and there is none after it."""
        return self._pause is None and bool(self._attempt.done())

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline of the call."""
        remaining: float | None = self._attempt.time_remaining()
        return remaining

    def add_done_callback(self, callback: Any) -> None:
        """Calls back when the call ends.

        An attempt that ends while the call is not read counts as its end.
        """
        self._callbacks.append(callback)
        if len(self._callbacks) == 1:
            self._observe()

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Returns what the latest attempt received first."""
        metadata: grpc.aio.Metadata = await self._attempt.initial_metadata()
        return metadata

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Returns what the latest attempt received last."""
        metadata: grpc.aio.Metadata = await self._attempt.trailing_metadata()
        return metadata

    async def code(self) -> grpc.StatusCode:
        """Returns the status of the latest attempt."""
        code: grpc.StatusCode = await self._attempt.code()
        return code

    async def details(self) -> str:
        """Returns the text of the status of the latest attempt."""
        details: str = await self._attempt.details()
        return details

    async def wait_for_connection(self) -> None:
        """Waits until the attempt that is under way has a connection."""
        await self._attempt.wait_for_connection()


class RepeatedCall(Repeated, grpc.aio.UnaryUnaryCall[Any, Any]):
    """A few attempts at one call of a repeatable method.

    Another attempt follows UNAVAILABLE and CANCELLED from the server, for any cause.
    """

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
        self._readers += 1
        try:
            return await self._attempts()
        finally:
            self._stop_reading()

    async def _attempts(self) -> Any:
        while True:
            try:
                return await self._attempt
            except StrataError as error:
                if not (self._may_repeat(error) and await self._paused(error)):
                    raise
            self._next()

    def _may_repeat(self, error: StrataError) -> bool:
        if self._final or not isinstance(error, UnavailableError | CancelledError):
            return False
        return self._take_attempt()


def _call_back(callbacks: list[DoneCallback], call: Any) -> None:
    """Calls each callback once."""
    while callbacks:
        callbacks.pop(0)(call)
