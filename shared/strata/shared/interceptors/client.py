"""The client side of a call, the same over a socket and in the process.

`ClientChannel` wraps any `grpc.aio.Channel`. Each call through it carries the
identity, request id and trace of the call being served, gets a deadline no later
than the caller's, and fails with an error of our tree instead of `AioRpcError`,
also while a stream is read.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from strata.shared.context import Caller, RequestContext, current, use
from strata.shared.errors import DeadlineExceededError
from strata.shared.interceptors.attempts import RepeatedCall, RepeatedStream, RepeatPolicy
from strata.shared.interceptors.auth import AUTHORIZATION_KEY
from strata.shared.interceptors.observe import REQUEST_ID_KEY, TRACEPARENT_KEY
from strata.shared.interceptors.peer import Peer
from strata.shared.skew import SkewMeter
from strata.shared.telemetry import make_traceparent

MARGIN_S = 0.05
"""What a hop keeps of the remaining time for itself, to answer before its caller gives up."""

Metadata = Sequence[tuple[str, str | bytes]]

_KEY = re.compile(r"[0-9a-z_.-]+")


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Own caps on outgoing calls, in seconds; None for no cap of our own."""

    unary_timeout_s: float | None = 30.0
    stream_timeout_s: float | None = 900.0


def outgoing_timeout(
    context: RequestContext, cap: float | None, timeout: float | None
) -> float | None:
    """Returns the least of the caller's remaining time, the cap and the timeout of the call.

    Raises:
        DeadlineExceededError: Nothing of the caller's time is left.
    """
    given = [each for each in (cap, timeout) if each is not None]
    remaining = context.remaining()
    if remaining is not None:
        if remaining <= MARGIN_S:
            raise DeadlineExceededError("The deadline of the call passed before a call it needs.")
        given.append(remaining - MARGIN_S)
    return min(given, default=None)


def outgoing_metadata(context: RequestContext, given: Metadata | None) -> Metadata:
    """Returns the metadata to send: what was given, and the context where it is silent.

    The run id travels in the signed token, where it cannot be made up.
    """
    metadata = [_checked(key, value) for key, value in given or ()]
    present = {key for key, _ in metadata}
    if context.caller is not None and context.caller.token and AUTHORIZATION_KEY not in present:
        metadata.append((AUTHORIZATION_KEY, f"Bearer {context.caller.token}"))
    if context.request_id and REQUEST_ID_KEY not in present:
        metadata.append((REQUEST_ID_KEY, context.request_id))
    if context.trace_id and TRACEPARENT_KEY not in present:
        metadata.append((TRACEPARENT_KEY, make_traceparent(context.trace_id)))
    return tuple(metadata)


def _vouched(context: RequestContext, given: Metadata | None) -> bool:
    """Whether the identity that is sent is the internal token of the context."""
    if context.caller is None or not context.caller.token:
        return False
    return all(key != AUTHORIZATION_KEY for key, _ in given or ())


def _checked(key: str, value: str | bytes) -> tuple[str, str | bytes]:
    # As gRPC does on the wire; a mistake must not wait for the first split deployment.
    if not _legal_key(key) or isinstance(value, bytes) != key.endswith("-bin"):
        raise ValueError(f"metadata {key!r} is not legal")
    return key, value


@lru_cache(maxsize=512)
def _legal_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


class _Waiting:
    """While a call is waited for: its errors become ours, and who stops waiting cancels it.

    grpc.aio (1.85) cancels a call whose waiter is cancelled, but not at every point: between the
    sending of the request and the first look for a response it forgets to, and the servicer
    would go on until the deadline.
    """

    __slots__ = ("_call", "_peer", "_sent", "_vouched", "unconnected")

    def __init__(self, call: Any, peer: Peer, sent: float, vouched: bool) -> None:
        self._call = call
        self._peer = peer
        self._sent = sent
        self._vouched = vouched
        self.unconnected = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            elapsed = asyncio.get_running_loop().time() - self._sent
            raise self._peer.error(error, elapsed, vouched=self._vouched) from error
        if isinstance(error, asyncio.CancelledError):
            self._call.cancel()
            task = asyncio.current_task()
            if self.unconnected and (task is None or not task.cancelling()):
                raise self._peer.not_connected() from error


_connecting: set[asyncio.Task[None]] = set()


async def _end_unconnected(call: Any, waiting: _Waiting, seconds: float) -> None:
    connected = asyncio.ensure_future(call.wait_for_connection())
    # Not cancelled when the time is over: that would cancel a task of the call itself.
    done, _ = await asyncio.wait((connected,), timeout=seconds)
    if not done:
        waiting.unconnected = True
        call.cancel()
    # How it ends is the business of the reader of the call.
    await asyncio.gather(connected, return_exceptions=True)


class _Call:
    """What all calls have in common."""

    def __init__(self, call: Any, peer: Peer, vouched: bool) -> None:
        self._call = call
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._sent = self._loop.time()
        self._waiting = _Waiting(call, peer, self._sent, vouched)

    def connect_within(self, seconds: float) -> None:
        """Ends a call with streamed requests UNAVAILABLE if it has no connection in that time.

        Its requests cannot be sent a second time, so the one attempt waits for a connection.
        """
        # Not in the context of the caller, and without this object, which cancels itself.
        task = self._loop.create_task(
            _end_unconnected(self._call, self._waiting, seconds), context=contextvars.Context()
        )
        _connecting.add(task)
        task.add_done_callback(_connecting.discard)

    def __del__(self) -> None:
        # A call that nobody holds can never be read, but grpc.aio keeps it running until
        # its deadline (1.85): a reader that broke out of a stream would leave it open.
        call = getattr(self, "_call", None)
        if call is not None and not self._loop.is_closed() and not call.done():
            call.cancel()

    def cancel(self) -> bool:
        return bool(self._call.cancel())

    def cancelled(self) -> bool:
        return bool(self._call.cancelled())

    def done(self) -> bool:
        return bool(self._call.done())

    def time_remaining(self) -> float | None:
        remaining: float | None = self._call.time_remaining()
        return remaining

    def add_done_callback(self, callback: Any) -> None:
        held = weakref.ref(self)
        self._call.add_done_callback(lambda inner: callback(held() or inner))

    async def initial_metadata(self) -> grpc.aio.Metadata:
        metadata: grpc.aio.Metadata = await self._call.initial_metadata()
        return metadata

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        metadata: grpc.aio.Metadata = await self._call.trailing_metadata()
        return metadata

    async def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode = await self._call.code()
        return code

    async def details(self) -> str:
        details: str = await self._call.details()
        return details

    async def wait_for_connection(self) -> None:
        with self._waiting:
            await self._call.wait_for_connection()


class _UnaryResponse(_Call):
    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        with self._waiting:
            response = await self._call
            if self._peer.clock_due():
                trailing = await self._call.trailing_metadata()
                self._peer.clock_seen(trailing, self._loop.time() - self._sent)
            return response


class _StreamResponse(_Call):
    def __aiter__(self) -> AsyncIterator[Any]:
        return _Responses(self, self._call.__aiter__(), self._waiting)

    async def read(self) -> Any:
        with self._waiting:
            return await self._call.read()


class _Responses:
    def __init__(self, call: _Call, inner: Any, waiting: _Waiting) -> None:
        # Held because it cancels itself once nobody holds it.
        self._call = call
        self._waiting = waiting
        self._inner = inner

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        with self._waiting:
            return await self._inner.__anext__()


class _StreamRequest(_Call):
    async def write(self, request: Any) -> None:
        with self._waiting:
            await self._call.write(request)

    async def done_writing(self) -> None:
        with self._waiting:
            await self._call.done_writing()


class _UnaryUnaryCall(_UnaryResponse, grpc.aio.UnaryUnaryCall[Any, Any]):
    pass


class _UnaryStreamCall(_StreamResponse, grpc.aio.UnaryStreamCall[Any, Any]):
    pass


class _StreamUnaryCall(_UnaryResponse, _StreamRequest, grpc.aio.StreamUnaryCall[Any, Any]):
    pass


class _StreamStreamCall(_StreamResponse, _StreamRequest, grpc.aio.StreamStreamCall[Any, Any]):
    pass


class _Callable:
    """Starts calls of one method with the context of the moment."""

    _wrap: type[_Call]

    def __init__(
        self,
        inner: Any,
        cap: float | None,
        caller: Caller | None,
        peer: Peer,
        connect_s: float | None = None,
    ) -> None:
        self._inner = inner
        self._cap = cap
        self._caller = caller
        self._peer = peer
        self._connect_s = connect_s

    def _start(self, request: Any, timeout: float | None, metadata: Any, **options: Any) -> Any:
        context = current()
        vouched = _vouched(context, metadata)
        if self._caller is not None:
            context, vouched = context.with_caller(self._caller), False
        connect_s = self._connect_s if options["wait_for_ready"] is None else None
        if connect_s is not None:
            options["wait_for_ready"] = True
        inner = self._inner(
            request,
            timeout=outgoing_timeout(context, self._cap, timeout),
            metadata=outgoing_metadata(context, metadata),
            **options,
        )
        call = self._wrap(inner, self._peer, vouched)
        if connect_s is not None:
            call.connect_within(connect_s)
        return call


class _UnaryRequestCallable(_Callable):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self._start(
            request,
            timeout,
            metadata,
            credentials=credentials,
            wait_for_ready=wait_for_ready,
            compression=compression,
        )


class _StreamRequestCallable(_Callable):
    def __call__(
        self,
        request_iterator: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: grpc.CallCredentials | None = None,
        wait_for_ready: bool | None = None,
        compression: grpc.Compression | None = None,
    ) -> Any:
        return self._start(
            request_iterator,
            timeout,
            metadata,
            credentials=credentials,
            wait_for_ready=wait_for_ready,
            compression=compression,
        )


class _UnaryUnary(_UnaryRequestCallable, grpc.aio.UnaryUnaryMultiCallable[Any, Any]):
    _wrap = _UnaryUnaryCall


class _UnaryStream(_UnaryRequestCallable, grpc.aio.UnaryStreamMultiCallable[Any, Any]):
    _wrap = _UnaryStreamCall


class _Repeating(_UnaryRequestCallable, ABC):
    """Starts calls that are attempted again while the peer hangs or is away."""

    def __init__(
        self,
        inner: Any,
        cap: float | None,
        caller: Caller | None,
        peer: Peer,
        *,
        method: str,
        policy: RepeatPolicy,
    ) -> None:
        super().__init__(inner, cap, caller, peer)
        self._method = method
        self._policy = policy

    def _start(self, request: Any, timeout: float | None, metadata: Any, **options: Any) -> Any:
        context, loop = current(), asyncio.get_running_loop()
        whole = outgoing_timeout(context, self._cap, timeout)
        deadline = None if whole is None else loop.time() + whole
        begin = super()._start

        def attempt() -> Any:
            with use(context):
                left = None if deadline is None else max(deadline - loop.time(), 0.0)
                return begin(request, left, metadata, **options)

        return self._repeat(attempt, deadline, loop.time() + self._policy.away_s)

    @abstractmethod
    def _repeat(self, attempt: Any, deadline: float | None, latest: float) -> Any:
        """Returns the repeated call.

        Args:
            attempt: Starts an attempt.
            deadline: Of the whole call, time of the event loop; None for no end.
            latest: When to give a peer up that is away, where there is no deadline.
        """


class _RepeatedUnaryUnary(_Repeating, _UnaryUnary):
    def _repeat(self, attempt: Any, deadline: float | None, latest: float) -> Any:
        until = latest if deadline is None else deadline
        return RepeatedCall(attempt, self._method, until=until, policy=self._policy)


class _RepeatedUnaryStream(_Repeating, _UnaryStream):
    def _repeat(self, attempt: Any, deadline: float | None, latest: float) -> Any:
        until = latest if deadline is None else min(latest, deadline)
        return RepeatedStream(attempt, self._method, until)


class _StreamUnary(_StreamRequestCallable, grpc.aio.StreamUnaryMultiCallable[Any, Any]):
    _wrap = _StreamUnaryCall


class _StreamStream(_StreamRequestCallable, grpc.aio.StreamStreamMultiCallable[Any, Any]):
    _wrap = _StreamStreamCall


class ClientChannel(grpc.aio.Channel):
    """A channel whose calls carry the context and fail with our errors.

    Raises from its calls: the `strata.shared.errors` tree; `asyncio.CancelledError`
    when the call was cancelled on this side.

    Args:
        inner: The channel that transports.
        policy: Caps on the calls.
        token: Sent with each call in place of that of the context's caller.
        peer: Name of the service behind it, where that is called with internal tokens.
        skew: Measures the clock of the peer.
        repeat: How calls wait for the peer and are repeated; None leaves that to the channel.
    """

    def __init__(
        self,
        inner: grpc.aio.Channel,
        policy: CallPolicy | None = None,
        *,
        token: str = "",
        peer: str = "",
        skew: SkewMeter | None = None,
        repeat: RepeatPolicy | None = None,
    ) -> None:
        self._peer = Peer(peer, skew)
        self._inner: Any = inner
        self._policy = policy or CallPolicy()
        self._repeat = repeat
        # Two channels of one task may have two keys, so a key cannot come from the context.
        self._caller = Caller("", "", "", token=token) if token else None

    def unary_unary(
        self, method: str, *args: Any, **kwargs: Any
    ) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        """Returns the callable of a unary method."""
        inner = self._inner.unary_unary(method, *args, **kwargs)
        cap = self._policy.unary_timeout_s
        if self._repeat is None:
            return _UnaryUnary(inner, cap, self._caller, self._peer)
        return _RepeatedUnaryUnary(
            inner, cap, self._caller, self._peer, method=method, policy=self._repeat
        )

    def unary_stream(
        self, method: str, *args: Any, **kwargs: Any
    ) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        """Returns the callable of a method that streams its responses."""
        inner = self._inner.unary_stream(method, *args, **kwargs)
        cap = self._policy.stream_timeout_s
        if self._repeat is None:
            return _UnaryStream(inner, cap, self._caller, self._peer)
        return _RepeatedUnaryStream(
            inner, cap, self._caller, self._peer, method=method, policy=self._repeat
        )

    def stream_unary(
        self, *args: Any, **kwargs: Any
    ) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        """Returns the callable of a method that takes a stream of requests."""
        inner = self._inner.stream_unary(*args, **kwargs)
        return _StreamUnary(*self._streaming(inner))

    def stream_stream(
        self, *args: Any, **kwargs: Any
    ) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        """Returns the callable of a method that streams both ways."""
        inner = self._inner.stream_stream(*args, **kwargs)
        return _StreamStream(*self._streaming(inner))

    def _streaming(self, inner: Any) -> tuple[Any, float | None, Caller | None, Peer, float | None]:
        connect_s = None if self._repeat is None else self._repeat.away_s
        return inner, self._policy.stream_timeout_s, self._caller, self._peer, connect_s

    async def close(self, grace: float | None = None) -> None:
        """Closes the inner channel."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the inner channel."""
        state: grpc.ChannelConnectivity = self._inner.get_state(try_to_connect)
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the inner channel leaves the state."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the inner channel is connected."""
        await self._inner.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()
