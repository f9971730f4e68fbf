"""The client side of a call, the same over a socket and in the process.

`ClientChannel` wraps any `grpc.aio.Channel`. Each call through it carries the
identity, request id and trace of the call being served, gets a deadline no later
than the caller's, and fails with an error of our tree instead of `AioRpcError`,
also while a stream is read.
"""

from __future__ import annotations

import asyncio
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from strata.protocol.calls import (
    Call,
    Peer,
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from strata.protocol.errors import DeadlineExceededError
from strata.shared.clock_skew import SkewMeter
from strata.shared.context import RequestContext, current, use
from strata.shared.interceptors.attempts import (
    RepeatedStream,
    RepeatPolicy,
    ServiceCall,
)
from strata.shared.interceptors.auth import AUTHORIZATION_KEY
from strata.shared.interceptors.observe import REQUEST_ID_KEY, TRACEPARENT_KEY
from strata.shared.interceptors.peer import ServicePeer
from strata.shared.interceptors.replay import (
    ReplayedCall,
    ReplayedStream,
    RequestReplay,
    Serialize,
)
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
    limits = [limit for limit in (cap, timeout) if limit is not None]
    remaining = context.remaining()
    if remaining is not None:
        if remaining <= MARGIN_S:
            raise DeadlineExceededError("The deadline of the call passed before a call it needs.")
        limits.append(remaining - MARGIN_S)
    return min(limits, default=None)


def outgoing_metadata(context: RequestContext, sent_metadata: Metadata | None) -> Metadata:
    """Returns the metadata of a call, with the keys that it lacks taken from the context.

    The run id travels in the signed token, where it cannot be made up.
    """
    metadata = [_checked(key, value) for key, value in sent_metadata or ()]
    present = {key for key, _ in metadata}
    if context.caller is not None and context.caller.token and AUTHORIZATION_KEY not in present:
        metadata.append((AUTHORIZATION_KEY, f"Bearer {context.caller.token}"))
    if context.request_id and REQUEST_ID_KEY not in present:
        metadata.append((REQUEST_ID_KEY, context.request_id))
    if context.trace_id and TRACEPARENT_KEY not in present:
        metadata.append((TRACEPARENT_KEY, make_traceparent(context.trace_id)))
    return tuple(metadata)


def _vouched(context: RequestContext, metadata: Metadata | None) -> bool:
    """Whether the identity that is sent is the internal token of the context."""
    if context.caller is None or not context.caller.token:
        return False
    return all(key != AUTHORIZATION_KEY for key, _ in metadata or ())


def _checked(key: str, value: str | bytes) -> tuple[str, str | bytes]:
    # As gRPC does on the wire; a mistake must not wait for the first split deployment.
    if not _legal_key(key) or isinstance(value, bytes) != key.endswith("-bin"):
        raise ValueError(f"metadata {key!r} is not legal")
    return key, value


@lru_cache(maxsize=512)
def _legal_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


class _Callable:
    """Starts calls of one method with the context of the moment."""

    _wrap: type[Call]

    def __init__(
        self,
        inner: Any,
        cap: float | None,
        peer: Peer,
        connect_s: float | None = None,
    ) -> None:
        self._inner = inner
        self._cap = cap
        self._peer = peer
        self._connect_s = connect_s

    def _start(self, request: Any, timeout: float | None, metadata: Any, **options: Any) -> Any:
        context = current()
        vouched = _vouched(context, metadata)
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
    _wrap = UnaryUnaryCall


class _UnaryStream(_UnaryRequestCallable, grpc.aio.UnaryStreamMultiCallable[Any, Any]):
    _wrap = UnaryStreamCall


class _Repeating(_Callable, ABC):
    """Starts calls that are attempted again."""

    def __init__(
        self,
        inner: Any,
        cap: float | None,
        peer: Peer,
        connect_s: float | None = None,
        *,
        method: str,
        policy: RepeatPolicy,
    ) -> None:
        super().__init__(inner, cap, peer, connect_s)
        self._method = method
        self._policy = policy

    def _start(self, request: Any, timeout: float | None, metadata: Any, **options: Any) -> Any:
        context, loop = current(), asyncio.get_running_loop()
        whole = outgoing_timeout(context, self._cap, timeout)
        deadline = None if whole is None else loop.time() + whole
        begin = super()._start

        def attempt(request: Any) -> Any:
            with use(context):
                left = None if deadline is None else max(deadline - loop.time(), 0.0)
                return begin(request, left, metadata, **options)

        return self._repeat(attempt, request, deadline, loop.time() + self._policy.away_s)

    @abstractmethod
    def _repeat(
        self,
        attempt: Callable[[Any], Any],
        request: Any,
        deadline: float | None,
        latest: float,
    ) -> Any:
        """Returns the repeated call.

        Args:
            attempt: Starts an attempt with a request, or an iterator over requests.
            request: What the caller sends.
            deadline: Of the whole call, time of the event loop; None for no end.
            latest: When to give a peer up that is away, where there is no deadline.
        """


class _RepeatedUnaryUnary(_Repeating, _UnaryUnary):
    def _repeat(
        self,
        attempt: Callable[[Any], Any],
        request: Any,
        deadline: float | None,
        latest: float,
    ) -> Any:
        until = latest if deadline is None else deadline
        return ServiceCall(lambda: attempt(request), self._method, until=until, policy=self._policy)


class _RepeatedUnaryStream(_Repeating, _UnaryStream):
    def _repeat(
        self,
        attempt: Callable[[Any], Any],
        request: Any,
        deadline: float | None,
        latest: float,
    ) -> Any:
        until = latest if deadline is None else min(latest, deadline)
        return RepeatedStream(lambda: attempt(request), self._method, until, self._policy)


class _StreamUnary(_StreamRequestCallable, grpc.aio.StreamUnaryMultiCallable[Any, Any]):
    _wrap = StreamUnaryCall


class _StreamStream(_StreamRequestCallable, grpc.aio.StreamStreamMultiCallable[Any, Any]):
    _wrap = StreamStreamCall


class _Replaying(_Repeating, _StreamRequestCallable):
    """Starts calls whose requests can be sent again.

    Args:
        inner: Starts calls of the transport whose requests are bytes.
        serialize: Serialises a request; None for requests that are bytes.
        written: Starts calls whose requests are written one by one, and not repeated.
    """

    _repeated: Callable[..., Any]

    def __init__(
        self,
        inner: Any,
        *arguments: Any,
        serialize: Serialize | None,
        written: _StreamRequestCallable,
        **options: Any,
    ) -> None:
        super().__init__(inner, *arguments, **options)
        self._serialize = serialize
        self._written = written

    def _start(self, request: Any, timeout: float | None, metadata: Any, **options: Any) -> Any:
        if request is None:
            return self._written(None, timeout, metadata, **options)
        return super()._start(request, timeout, metadata, **options)

    def _repeat(
        self,
        attempt: Callable[[Any], Any],
        request: Any,
        deadline: float | None,
        latest: float,
    ) -> Any:
        until = math.inf if deadline is None else deadline
        replay = RequestReplay(request, self._serialize)
        return self._repeated(attempt, replay, self._method, until=until, policy=self._policy)


class _RepeatedStreamUnary(_Replaying, _StreamUnary):
    _repeated = ReplayedCall


class _RepeatedStreamStream(_Replaying, _StreamStream):
    _repeated = ReplayedStream


class ClientChannel(grpc.aio.Channel):
    """A channel whose calls carry the context and fail with our errors.

    Raises from its calls: the `strata.protocol.errors` tree; `asyncio.CancelledError`
    when the call was cancelled on this side.

    Args:
        inner: The channel that transports.
        policy: Caps on the calls.
        peer: Name of the service behind it, where that is called with internal tokens.
        skew: Measures the clock of the peer.
        repeat: How calls are repeated and wait for the peer; None makes one attempt at each call.
    """

    def __init__(
        self,
        inner: grpc.aio.Channel,
        policy: CallPolicy | None = None,
        *,
        peer: str = "",
        skew: SkewMeter | None = None,
        repeat: RepeatPolicy | None = None,
    ) -> None:
        self._peer = ServicePeer(peer, skew)
        self._inner: Any = inner
        self._policy = policy or CallPolicy()
        self._repeat = repeat

    def unary_unary(
        self, method: str, *args: Any, **kwargs: Any
    ) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        """Returns the callable of a unary method."""
        inner = self._inner.unary_unary(method, *args, **kwargs)
        cap = self._policy.unary_timeout_s
        repeat = self._repeat
        if repeat is None:
            return _UnaryUnary(inner, cap, self._peer)
        return _RepeatedUnaryUnary(inner, cap, self._peer, method=method, policy=repeat)

    def unary_stream(
        self, method: str, *args: Any, **kwargs: Any
    ) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        """Returns the callable of a method that streams its responses."""
        inner = self._inner.unary_stream(method, *args, **kwargs)
        cap = self._policy.stream_timeout_s
        if self._repeat is None:
            return _UnaryStream(inner, cap, self._peer)
        return _RepeatedUnaryStream(inner, cap, self._peer, method=method, policy=self._repeat)

    def stream_unary(
        self, method: str, request_serializer: Any = None, *args: Any, **kwargs: Any
    ) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        """Returns the callable of a method that takes a stream of requests."""
        open_ = self._inner.stream_unary
        written = _StreamUnary(*self._streaming(open_(method, request_serializer, *args, **kwargs)))
        if self._repeat is None:
            return written
        return _RepeatedStreamUnary(
            *self._streaming(open_(method, None, *args, **kwargs)),
            method=method,
            policy=self._repeat,
            serialize=request_serializer,
            written=written,
        )

    def stream_stream(
        self, method: str, request_serializer: Any = None, *args: Any, **kwargs: Any
    ) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        """Returns the callable of a method that streams both ways."""
        open_ = self._inner.stream_stream
        written = _StreamStream(
            *self._streaming(open_(method, request_serializer, *args, **kwargs))
        )
        if self._repeat is None:
            return written
        return _RepeatedStreamStream(
            *self._streaming(open_(method, None, *args, **kwargs)),
            method=method,
            policy=self._repeat,
            serialize=request_serializer,
            written=written,
        )

    def _streaming(self, inner: Any) -> tuple[Any, float | None, Peer, float | None]:
        repeat = self._repeat
        connect_s = None if repeat is None else repeat.away_s
        return inner, self._policy.stream_timeout_s, self._peer, connect_s

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
