"""Repeats calls between services if the other one does not answer, is down, or refuses the token.

gRPC's own retries are off: they can hang, and they end too early. A process that hangs keeps its
connections, and a service that restarts cannot be reached for longer than a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from strata.protocol.attempts import Repeated, RepeatedCall, RepeatLimits
from strata.protocol.calls import read_all
from strata.protocol.errors import Reason, StrataError, UnavailableError, is_transient
from strata.protocol.request_ids import has_request_id
from strata.shared.interceptors.peer import token_refused
from strata.shared.logs import get_logger

GROWTH = 2.0
"""The factor between the waits of two attempts; a peer that is slow, but not hung, then answers."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RepeatPolicy(RepeatLimits):
    """How calls between services are repeated.

    Attributes:
        patience_s: Path of a repeatable unary method (free of side effects or idempotent) to
            the seconds after which its first attempt is given up and the next one starts.
        request_id_numbers: Path of a repeatable unary method whose requests have a ``request_id``
            to the number of that field. Such a method is repeatable if the request has an id.
        away_s: How long a stream, or a call without a deadline, waits for a peer that cannot be
            reached; other calls wait until their deadline.
        max_attempts: Attempts in all that get no answer, the answer UNAVAILABLE, or whose
            token is refused.
    """

    patience_s: Mapping[str, float] = field(default_factory=dict)
    request_id_numbers: Mapping[str, int] = field(default_factory=dict)
    away_s: float = 30.0

    def patience_for(self, method: str, request: Any) -> float | None:
        """Returns after how many seconds an attempt is given up; None if it is not repeatable.

        Args:
            method: Path of the method.
            request: The request, or its serialised form.
        """
        number = self.request_id_numbers.get(method)
        if number is not None and not has_request_id(request, number):
            return None
        return self.patience_s.get(method)


class ServiceRepeated(Repeated):
    """Common part of repeated calls between services: logs them, and heeds retry hints.

    Args:
        start: Starts an attempt, which ends with the deadline of the whole call.
        method: Path of the method.
        until: Time of the event loop after which no attempt is made.
        policy: How calls are repeated.
    """

    def __init__(
        self, start: Callable[[], Any], method: str, until: float, policy: RepeatPolicy
    ) -> None:
        super().__init__(start, method, until, policy)
        self._policy = policy
        self._logged = False

    def _note_repetition(self, error: StrataError) -> bool:
        refused = token_refused(error)
        # A refused token is logged for the peer, not for each call.
        if not (self._logged or refused):
            self._logged = True
            _log.warning("call is repeated", method=self._method, error=repr(error))
        # The hint of a refused token is meant for the client outside, after our own attempts.
        return not refused


class ServiceCall(ServiceRepeated, RepeatedCall):
    """Attempts at one call, one after another, until the deadline of the call.

    For every method, an attempt that was never sent, because no connection could be made, is
    repeated, and a few times an attempt whose token was refused. A repeatable method is also
    repeated after the connection broke or while its server stops, as often as the time allows, and
    a few times after the answer UNAVAILABLE or after an attempt that was cancelled because it got
    no answer.

    Args:
        start: Starts an attempt, which ends with the deadline of the whole call.
        method: Path of the method.
        until: Deadline of the whole call, time of the event loop.
        policy: How calls are repeated.
        patience_s: See `RepeatPolicy.patience_for`.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        method: str,
        *,
        until: float,
        policy: RepeatPolicy,
        patience_s: float | None,
    ) -> None:
        super().__init__(start, method, until, policy)
        self._repeatable = patience_s is not None
        self._patience_s = patience_s

    async def _attempts(self) -> Any:
        patience, lost = self._patience_s, False
        while True:
            watch = self._watch(patience)
            try:
                return await self._attempt
            except asyncio.CancelledError:
                if watch is None or patience is None or not watch.cancelled_it():
                    raise
                _log.warning(
                    "call timed out and is repeated",
                    method=self._method,
                    seconds=round(patience, 3),
                )
                patience *= GROWTH
                self._attempts_left -= 1
                lost = True
            except StrataError as error:
                if not (self._may_repeat(error) and await self._paused(error)):
                    if lost and is_transient(error):
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
        if patience is None or self._attempts_left < 1:
            return None
        remaining = self._attempt.time_remaining()
        if remaining is not None and remaining <= patience:
            return None
        return _Watch(self._attempt, patience)

    def _may_repeat(self, error: StrataError) -> bool:
        if self._final:
            return False
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


class RepeatedStream(ServiceRepeated, grpc.aio.UnaryStreamCall[Any, Any]):
    """Attempts at one call with streamed responses, until one was sent.

    An attempt that was never sent, because no connection could be made, is followed by another,
    and so are a few attempts whose token is refused. A stream that breaks off later raises the
    error to its reader.

    Where requests stream, they are a `RequestStream`, and each attempt sends all of them. The peer
    checks the token before the method begins, so the requests of an attempt whose token was refused
    had no effect.
    """

    def __aiter__(self) -> AsyncIterator[Any]:
        return read_all(self)

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


class _Watch:
    """Cancels an attempt at its time limit, and can distinguish this from other cancellations."""

    def __init__(self, attempt: Any, seconds: float) -> None:
        self._attempt = attempt
        self._has_cancelled = False
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end)

    def cancelled_it(self) -> bool:
        task = self._task
        cancel_requests = task.cancelling() if task is not None else 0
        return self._has_cancelled and cancel_requests == self._cancelling

    def stop(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        # An attempt that has just answered is not cancelled.
        self._has_cancelled = bool(self._attempt.cancel())
