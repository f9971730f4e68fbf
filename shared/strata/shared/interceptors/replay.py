"""Calls with streamed requests that are sent again to another replica when the token is refused.

A service checks the token before a method begins, so the requests that were sent until it refused
had no effect. They are kept for the next attempt, up to a limit.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable
from typing import Any, Self

import grpc
import grpc.aio

from strata.protocol.attempts import call_back
from strata.protocol.errors import StrataError
from strata.protocol.shapes import Serializer
from strata.shared.final_status import FinalStatus, is_failed_write
from strata.shared.interceptors.attempts import RepeatPolicy, ServiceRepeated
from strata.shared.interceptors.peer import token_refused
from strata.shared.logs import get_logger
from strata.shared.settings import KIB

LIMIT_BYTES = 256 * KIB
"""Serialised requests that are kept for another attempt; gRPC's own retries keep as much."""

Requests = AsyncIterable[Any] | Iterable[Any]

_log = get_logger(__name__)


class RequestReplay:
    """The requests of one call, for one attempt after another.

    grpc.aio reads the requests of an attempt in a task of its own, which it does not end with the
    attempt. So a task of an ended attempt may still wait for the caller's next request. It then
    fetches that request for the next attempt: each request is kept before any attempt takes it.

    Args:
        requests: The caller's iterator.
        serialize: Serialises a request; None for requests that are bytes.
        limit_bytes: Size of the requests that are kept at most.

    Raises:
        TypeError: `requests` is not iterable.
    """

    def __init__(
        self, requests: Requests, serialize: Serializer | None, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._requests: Any
        if isinstance(requests, AsyncIterable):
            self._asynchronous, self._requests = True, aiter(requests)
        else:
            self._asynchronous, self._requests = False, iter(requests)
        self._serialize = serialize
        self._limit_bytes = limit_bytes
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._position = 0
        self._replayable = True
        self._closed = False
        self._end: BaseException | None = None
        self._fetching = False
        self._arrivals: list[asyncio.Future[None]] = []
        self._reader: _AttemptRequests | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def replayable(self) -> bool:
        """Whether another attempt can get all requests."""
        return self._replayable

    def requests(self) -> AsyncIterator[bytes]:
        """Returns all requests for a new attempt; the attempts before get no more.

        Raises:
            RuntimeError: They are not `replayable`, and an attempt has them.
        """
        if self._reader is not None and not self._replayable:
            raise RuntimeError("the requests of the call are not kept any more")
        self._position = 0
        self._reader = _AttemptRequests(self)
        return self._reader

    def drop(self) -> None:
        """Frees the requests that the present attempt has taken; no other attempt follows."""
        if self._replayable:
            self._replayable = False
            del self._kept[: self._position]
            self._position = 0

    def close(self) -> None:
        """Ends the fetching of requests, because the call is over."""
        if self._closed:
            return
        self._closed, self._replayable = True, False
        self._kept.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            # In a call that has ended, grpc.aio swallows the cancellation.
            task.cancel()

    def register(self, task: asyncio.Task[Any] | None) -> None:
        """Takes the task of grpc.aio that reads the requests of an attempt."""
        if task is not None and not self._closed:
            self._tasks.append(task)

    async def next_of(self, reader: _AttemptRequests) -> bytes:
        """Returns the next request of an attempt."""
        while reader is self._reader and not self._closed:
            if self._position < len(self._kept):
                return self._take()
            if self._end is not None:
                raise self._end
            if self._fetching:
                await self._arrival()
            else:
                await self._fetch()
        raise StopAsyncIteration

    def _take(self) -> bytes:
        if not self._replayable:
            return self._kept.pop(0)
        request = self._kept[self._position]
        self._position += 1
        return request

    async def _arrival(self) -> None:
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals.append(arrival)
        await arrival

    async def _fetch(self) -> None:
        self._fetching = True
        try:
            if self._asynchronous:
                message = await self._requests.__anext__()
            else:
                message = next(self._requests)
            self._keep(message if self._serialize is None else self._serialize(message))
        except (StopAsyncIteration, StopIteration):
            self._end = StopAsyncIteration()
        except asyncio.CancelledError as error:
            self._end = error
        except BaseException as error:  # noqa: BLE001 - raised where the request is awaited
            # grpc.aio cancels the call and names no cause.
            _log.warning("the iterator over requests failed", error=type(error).__name__)
            self._end = error
        finally:
            self._fetching = False
            arrivals, self._arrivals = self._arrivals, []
            for arrival in arrivals:
                if not arrival.done():
                    arrival.set_result(None)

    def _keep(self, request: bytes) -> None:
        self._kept.append(request)
        self._kept_bytes += len(request)
        if self._kept_bytes > self._limit_bytes:
            self.drop()


class _AttemptRequests:
    """Iterator over the requests of one attempt."""

    __slots__ = ("_registered", "_replay")

    def __init__(self, replay: RequestReplay) -> None:
        self._replay = replay
        self._registered = False

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        if not self._registered:
            self._registered = True
            self._replay.register(asyncio.current_task())
        return self._replay.next_of(self)


class _Replayed(ServiceRepeated):
    """Attempts at one call with streamed requests, while the token is refused.

    No attempt follows once a response has arrived, or more requests were sent than are kept.

    Args:
        start: Starts an attempt with its requests, which ends with the deadline of the call.
        replay: The requests.
        method: Path of the method.
        until: Time of the event loop after which no attempt is made.
        policy: How calls are repeated.
    """

    _always_observed = True

    def __init__(
        self,
        start: Callable[[AsyncIterator[bytes]], Any],
        replay: RequestReplay,
        method: str,
        *,
        until: float,
        policy: RepeatPolicy,
    ) -> None:
        self._replay = replay
        self._status = FinalStatus()
        self._settled = False
        self._loop = asyncio.get_running_loop()
        super().__init__(lambda: start(replay.requests()), method, until, policy)
        self._observe()

    def __del__(self) -> None:
        replay = getattr(self, "_replay", None)
        if replay is not None and not self._loop.is_closed():
            replay.close()

    async def write(self, request: Any) -> None:
        """Raises `grpc.aio.UsageError`: the requests come from an iterator."""
        await self._attempt.write(request)

    async def done_writing(self) -> None:
        """Raises `grpc.aio.UsageError`: the requests come from an iterator."""
        await self._attempt.done_writing()

    def add_done_callback(self, callback: Any) -> None:
        """Calls back when the call ends."""
        self._callbacks.append(callback)
        if self.done() and not self._may_follow():
            self._over()

    def _observe(self) -> None:
        status = self._status = FinalStatus()
        held, callbacks = weakref.WeakMethod(self._attempt_ended), self._callbacks

        def ended(attempt: Any) -> None:
            status.note(attempt)
            attempt_ended = held()
            if attempt_ended is None:
                call_back(callbacks, attempt)
            else:
                attempt_ended(attempt)

        self._attempt.add_done_callback(ended)

    def _attempt_ended(self, attempt: Any) -> None:
        if attempt is self._attempt and not self._may_follow():
            self._over()

    def _may_follow(self) -> bool:
        """Whether the reader of the call may start another attempt after the present one."""
        if self._final or self._left < 1 or not self._replay.replayable:
            return False
        status = self._status.status
        return status is None or status.code is grpc.StatusCode.UNAUTHENTICATED

    def _over(self) -> None:
        self._replay.close()
        super()._over()

    async def _receive(self, receive: Callable[[Any], Awaitable[Any]]) -> Any:
        """Returns the first response of the attempt that is not refused."""
        self._readers += 1
        try:
            while True:
                try:
                    response = await receive(self._attempt)
                except StrataError as error:
                    failure = await self._failure(error)
                    if not await self._follows(failure):
                        if failure is error:
                            raise
                        raise failure from failure.__cause__
                else:
                    self._settle()
                    return response
                self._next()
        finally:
            self._stop_reading()

    def _settle(self) -> None:
        """Notes that a response has arrived."""
        self._settled = True
        self._replay.drop()

    async def _failure(self, error: StrataError) -> StrataError:
        """Returns the error for the status that the peer sent, where a failed write hides it."""
        if not is_failed_write(error):
            return error
        status = await self._status.after_failed_write(self._attempt)
        if status is None or status.code is grpc.StatusCode.OK:
            return error
        failure: StrataError = self._attempt.error_of(status)
        return failure

    async def _follows(self, error: StrataError) -> bool:
        """Waits for the next attempt; returns False if there is none."""
        if self._final or not (token_refused(error) and self._replay.replayable):
            return False
        # During the pause, the requests can become more than are kept.
        return self._take_attempt() and await self._paused(error) and self._replay.replayable


class ReplayedCall(_Replayed, grpc.aio.StreamUnaryCall[Any, Any]):
    """Attempts at one call with streamed requests and one response."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._receive(_itself).__await__()


class ReplayedStream(_Replayed, grpc.aio.StreamStreamCall[Any, Any]):
    """Attempts at one call with streamed requests and streamed responses."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return _Responses(self)

    async def read(self) -> Any:
        """Returns the next response, or `grpc.aio.EOF`."""
        if self._settled:
            return await self._attempt.read()
        return await self._receive(_read)

    def responses(self) -> AsyncIterator[Any] | None:
        """Returns the responses of the attempt that answered; None if none has answered yet."""
        responses: AsyncIterator[Any] | None = aiter(self._attempt) if self._settled else None
        return responses

    async def next_response(self) -> Any:
        """Returns the first response.

        Raises:
            StopAsyncIteration: The call ended well without one.
        """
        return await self._receive(_next)


class _Responses:
    def __init__(self, call: ReplayedStream) -> None:
        # Held because it cancels itself once nobody holds it.
        self._call = call
        self._inner: AsyncIterator[Any] | None = None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Any]:
        # Responses after the first one take no detour: a turn has thousands.
        if self._inner is None:
            self._inner = self._call.responses()
            if self._inner is None:
                return self._call.next_response()
        return self._inner.__anext__()


def _itself(attempt: Any) -> Awaitable[Any]:
    awaitable: Awaitable[Any] = attempt
    return awaitable


def _read(attempt: Any) -> Awaitable[Any]:
    response: Awaitable[Any] = attempt.read()
    return response


def _next(attempt: Any) -> Awaitable[Any]:
    response: Awaitable[Any] = aiter(attempt).__anext__()
    return response
