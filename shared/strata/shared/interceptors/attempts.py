"""A unary call that is attempted again while its peer hangs or is away.

gRPC repeats a call whose connection breaks a few times, within a second. A process that hangs
keeps its connections, and the call would wait for it until the deadline of the caller. A service
that restarts is away for longer than a second.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from strata.shared.backoff import Backoff
from strata.shared.errors import Reason, StrataError, UnavailableError, passes
from strata.shared.logs import get_logger

GROWTH = 2.0
"""Each attempt waits so many times as long as the one before: a peer that is slow rather than
hung answers in time in the end."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RepeatPolicy:
    """How calls to another service are repeated.

    Attributes:
        patience_s: Path of a repeatable unary method (free of side effects or idempotent) to
            the seconds after which its first attempt is left for another one.
        away_s: How long a stream, or a call without a deadline, waits for a peer that is away;
            other calls wait until their deadline.
        max_attempts: Attempts in all that get no answer, or the answer UNAVAILABLE.
    """

    patience_s: Mapping[str, float] = field(default_factory=dict)
    away_s: float = 30.0
    max_attempts: int = 4


class _Repeated:
    """What repeated calls of both shapes have in common.

    Args:
        start: Starts an attempt, which ends with the deadline of the whole call.
        method: Path of the method.
        until: Time of the event loop after which no attempt is made.
    """

    def __init__(self, start: Callable[[], Any], method: str, until: float) -> None:
        self._start = start
        self._method = method
        self._backoff = Backoff(until)
        self._attempt = start()
        self._pause: asyncio.Future[bool] | None = None
        self._logged = False
        self._final = False
        self._cancelled = False

    async def _paused(self, error: StrataError) -> bool:
        """Waits for the next attempt; returns False if there is no time for one."""
        if not self._logged:
            self._logged = True
            _log.warning("call is repeated", method=self._method, error=repr(error))
        self._pause = asyncio.ensure_future(self._backoff.wait(error))
        try:
            return await self._pause
        finally:
            self._pause = None

    def _next(self) -> None:
        """Starts the next attempt."""
        if self._final:
            raise asyncio.CancelledError
        self._attempt = self._start()

    def cancel(self) -> bool:
        """Cancels the attempt that is under way; there is none after it."""
        self._final = True
        pending = self._attempt if self._pause is None else self._pause
        cancelled = bool(pending.cancel())
        self._cancelled = self._cancelled or cancelled
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
        """Calls back when the attempt that is under way ends."""
        held = weakref.ref(self)
        self._attempt.add_done_callback(lambda inner: callback(held() or inner))

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


class RepeatedCall(_Repeated, grpc.aio.UnaryUnaryCall[Any, Any]):
    """Attempts at one call, one after another, until the deadline of the call.

    An attempt that was never sent, because no connection could be made, is followed by another
    one whatever the method does. A repeatable method is attempted again after the connection
    broke, or while its server stops, as often as the time allows; a few times after the answer
    UNAVAILABLE, or after no answer at all, for which an attempt is cancelled.

    Args:
        start: Starts an attempt, which ends with the deadline of the whole call.
        method: Path of the method.
        until: Deadline of the whole call, time of the event loop.
        policy: How calls are repeated.
    """

    def __init__(
        self, start: Callable[[], Any], method: str, *, until: float, policy: RepeatPolicy
    ) -> None:
        super().__init__(start, method, until)
        self._patience_s = policy.patience_s.get(method)
        self._left = policy.max_attempts - 1

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
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
        # A refused token is tried elsewhere by the retry policy of the channel.
        refused = error.reason is Reason.INTERNAL_TOKEN_REFUSED
        if self._final or refused or not isinstance(error, UnavailableError):
            return False
        if error.unsent:
            return True
        if self._patience_s is None:
            return False
        if error.lost or error.reason is Reason.SHUTTING_DOWN:
            return True
        self._left -= 1
        return self._left >= 0


class RepeatedStream(_Repeated, grpc.aio.UnaryStreamCall[Any, Any]):
    """Attempts at one call with streamed responses, until one was sent.

    An attempt that was never sent, because no connection could be made, is followed by another.
    A stream that breaks off later is left to its reader.
    """

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response

    async def read(self) -> Any:
        """Returns the next response, or `grpc.aio.EOF`."""
        while True:
            try:
                return await self._attempt.read()
            except UnavailableError as error:
                if self._final or not error.unsent or not await self._paused(error):
                    raise
            self._next()


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
