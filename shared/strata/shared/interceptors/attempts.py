"""Calls that are attempted again while their peer hangs, is away, or refuses the token.

gRPC can repeat calls as well, but its retry timer has a race that leaves a call hanging until its
deadline (grpc/grpc#41036), and its limits are too narrow: a process that hangs keeps its
connections, and a service that restarts is away for longer than a second.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from strata.protocol.backoff import FIRST_PAUSE_S, Backoff
from strata.protocol.errors import CancelledError, Reason, StrataError, UnavailableError, passes
from strata.shared.interceptors.peer import token_refused
from strata.shared.logs import get_logger

GROWTH = 2.0
"""Each attempt waits so many times as long as the one before: a peer that is slow rather than
hung answers in time in the end."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """How calls are repeated.

    Attributes:
        patience_s: Path of a repeatable unary method (free of side effects or idempotent) to
            the seconds after which its first attempt is left for another one.
        away_s: How long a stream, or a call without a deadline, waits for a peer that is away;
            other calls wait until their deadline.
        max_attempts: Attempts in all that get no answer, the answer UNAVAILABLE, or whose
            token is refused.
        first_pause_s: Mean pause before the second attempt, seconds. Later pauses double.
        internal: The peer is one of our services. Otherwise only repeatable methods are
            repeated, up to `max_attempts` whatever the cause, and `patience_s` and `away_s`
            set no times.
    """

    patience_s: Mapping[str, float] = field(default_factory=dict)
    away_s: float = 30.0
    max_attempts: int = 4
    first_pause_s: float = FIRST_PAUSE_S
    internal: bool = True


DoneCallback = Callable[[Any], None]


class Repeated:
    """Common part of repeated calls of all shapes.

    Args:
        start: Starts an attempt, which ends with the deadline of the whole call.
        method: Path of the method.
        until: Time of the event loop after which no attempt is made.
        policy: How calls are repeated.
    """

    _always_observed = False
    """Whether attempts are watched for their end although nobody asked for a callback."""

    def __init__(
        self, start: Callable[[], Any], method: str, until: float, policy: RepeatPolicy
    ) -> None:
        self._start = start
        self._method = method
        self._policy = policy
        self._backoff = Backoff(until, first_s=policy.first_pause_s)
        self._left = policy.max_attempts - 1
        self._attempt = start()
        self._pause: asyncio.Future[bool] | None = None
        self._callbacks: list[DoneCallback] = []
        self._readers = 0
        self._logged = False
        self._final = False
        self._cancelled = False

    def _take_attempt(self) -> bool:
        """Uses up one of the limited attempts; returns False if there is none left."""
        self._left -= 1
        return self._left >= 0

    async def _paused(self, error: StrataError) -> bool:
        """Waits for the next attempt; returns False if there is no time for one."""
        refused = token_refused(error)
        # A refused token is logged for the peer, not for each call. Programs of users log nothing.
        if self._policy.internal and not (self._logged or refused):
            self._logged = True
            _log.warning("call is repeated", method=self._method, error=repr(error))
        # The hint of a refused token is meant for the client outside, after our own attempts.
        hinted = self._policy.internal and not refused
        self._pause = asyncio.ensure_future(self._backoff.wait(error, hinted=hinted))
        try:
            return await self._pause
        except asyncio.CancelledError:
            # By `cancel`, or because the reader was cancelled, which cancels the call.
            self._final = self._cancelled = True
            raise
        finally:
            self._pause = None

    def _next(self) -> None:
        """Starts the next attempt."""
        if self._final:
            raise asyncio.CancelledError
        self._attempt = self._start()
        if self._callbacks or self._always_observed:
            self._observe()

    def _observe(self) -> None:
        """Watches the attempt that is under way for its end."""
        # The attempt must not keep this object alive, which cancels the call when it is dropped.
        held, callbacks = weakref.WeakMethod(self._attempt_ended), self._callbacks

        def ended(attempt: Any) -> None:
            attempt_ended = held()
            if attempt_ended is None:
                call_back(callbacks, attempt)
            else:
                attempt_ended(attempt)

        self._attempt.add_done_callback(ended)

    def _attempt_ended(self, attempt: Any) -> None:
        # Whoever reads the call decides whether another attempt follows.
        if attempt is self._attempt and not self._readers:
            self._over()

    def _over(self) -> None:
        """Called when the call has ended and no attempt follows; possibly more than once."""
        call_back(self._callbacks, self)

    def _stop_reading(self) -> None:
        """Called by a reader when it has a response or an error to return."""
        self._readers -= 1
        if not self._readers and self._attempt.done():
            self._over()

    def cancel(self) -> bool:
        """Cancels the attempt that is under way; there is none after it."""
        self._final = True
        pending = self._attempt if self._pause is None else self._pause
        cancelled = bool(pending.cancel())
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

        An attempt that ends while nobody reads the call counts as its end.
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
    """Attempts at one call, one after another, until the deadline of the call.

    An attempt that was never sent, because no connection could be made, is followed by another
    one whatever the method does, and so are a few attempts whose token is refused. A repeatable
    method is attempted again after the connection broke, or while its server stops, as often as
    the time allows; a few times after the answer UNAVAILABLE, or after no answer at all, for which
    an attempt is cancelled. Calls to others than our services are repeated a few times after
    UNAVAILABLE and after CANCELLED from the server, for whatever cause.

    Args:
        start: Starts an attempt, which ends with the deadline of the whole call.
        method: Path of the method.
        until: Deadline of the whole call, time of the event loop.
        policy: How calls are repeated.
    """

    def __init__(
        self, start: Callable[[], Any], method: str, *, until: float, policy: RepeatPolicy
    ) -> None:
        super().__init__(start, method, until, policy)
        self._repeatable = method in policy.patience_s
        self._patience_s = policy.patience_s.get(method) if policy.internal else None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
        self._readers += 1
        try:
            return await self._attempts()
        finally:
            self._stop_reading()

    async def _attempts(self) -> Any:
        patience, lost = self._patience_s, False
        while True:
            watch = self._watch(patience)
            try:
                return await self._attempt
            except asyncio.CancelledError:
                if watch is None or patience is None or not watch.cancelled_it():
                    raise
                _log.warning("no answer in time", method=self._method, seconds=round(patience, 3))
                patience *= GROWTH
                self._left -= 1
                lost = True
            except StrataError as error:
                if not (self._may_repeat(error) and await self._paused(error)):
                    if lost and passes(error):
                        # An earlier attempt may have had the effect of the call.
                        error.lost, error.unsent = True, False
                    raise
                lost = lost or error.lost
            finally:
                if watch is not None:
                    watch.stop()
            self._next()

    def _watch(self, patience: float | None) -> _Watch | None:
        """Watches an attempt, unless the deadline comes first or there may be no other."""
        if patience is None or self._left < 1:
            return None
        remaining = self._attempt.time_remaining()
        if remaining is not None and remaining <= patience:
            return None
        return _Watch(self._attempt, patience)

    def _may_repeat(self, error: StrataError) -> bool:
        if self._final:
            return False
        if not self._policy.internal:
            passing = isinstance(error, UnavailableError | CancelledError)
            return self._repeatable and passing and self._take_attempt()
        if not isinstance(error, UnavailableError):
            return False
        if token_refused(error):
            return self._take_attempt()
        if error.unsent:
            return True
        # A service behind the peer refused the peer's token, a few times in a row.
        if not self._repeatable or error.reason is Reason.INTERNAL_TOKEN_REFUSED:
            return False
        if error.lost or error.reason is Reason.SHUTTING_DOWN:
            return True
        return self._take_attempt()


class RepeatedStream(Repeated, grpc.aio.UnaryStreamCall[Any, Any]):
    """Attempts at one call with streamed responses, until one was sent.

    An attempt that was never sent, because no connection could be made, is followed by another,
    and so are a few attempts whose token is refused. A stream that breaks off later is left to its
    reader.
    """

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response

    async def read(self) -> Any:
        """Returns the next response, or `grpc.aio.EOF`."""
        self._readers += 1
        try:
            while True:
                try:
                    return await self._attempt.read()
                except UnavailableError as error:
                    if not (self._may_repeat(error) and await self._paused(error)):
                        raise
                self._next()
        finally:
            self._stop_reading()

    def _may_repeat(self, error: StrataError) -> bool:
        if self._final or not error.unsent:
            return False
        return not token_refused(error) or self._take_attempt()


def call_back(callbacks: list[DoneCallback], call: Any) -> None:
    """Calls each callback once."""
    while callbacks:
        callbacks.pop(0)(call)


class _Watch:
    """Cancels an attempt when its time is over, and can tell that from any other cancellation."""

    def __init__(self, attempt: Any, seconds: float) -> None:
        self._attempt = attempt
        self._over = False
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end)

    def cancelled_it(self) -> bool:
        task = self._task
        asked = task.cancelling() if task is not None else 0
        return self._over and asked == self._cancelling

    def stop(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        # An attempt that has answered a moment ago stays as it is.
        self._over = bool(self._attempt.cancel())
