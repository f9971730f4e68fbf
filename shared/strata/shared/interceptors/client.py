"""The client side of calls to other services, over a socket or in process.

`ClientChannel` wraps any `grpc.aio.Channel`. Each call through it carries the
identity, request id and trace of the call being served, gets a deadline no later
than the caller's, and fails with a `StrataError` instead of `AioRpcError`,
also while a stream is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import grpc.aio

from strata.protocol.calls import Peer, call_class
from strata.protocol.errors import DeadlineExceededError
from strata.protocol.shapes import ClientMethod, WrappedChannel
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
from strata.shared.request_stream import RequestStream
from strata.shared.tracing.rpc_spans import end_client_span, rpc_attributes
from strata.shared.tracing.spans import Span, SpanKind
from strata.shared.tracing.trace_context import make_traceparent

MARGIN_S = 0.05
"""Seconds of the remaining time that each hop reserves, to answer before its caller's limit."""

Metadata = Sequence[tuple[str, str | bytes]]

_KEY = re.compile(r"[0-9a-z_.-]+")


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Additional limits of outgoing calls, in seconds; None for no limit."""

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


def outgoing_metadata(
    context: RequestContext, sent_metadata: Metadata | None, span: Span | None = None
) -> Metadata:
    """Returns the metadata of a call, with the keys that it lacks taken from the context.

    The run id travels in the signed token, where it cannot be forged.

    Args:
        context: The context.
        sent_metadata: Metadata that the caller sets.
        span: The span of the call; None if it is not traced here.
    """
    metadata = [_checked(key, value) for key, value in sent_metadata or ()]
    keys = {key for key, _ in metadata}
    if context.caller is not None and context.caller.token and AUTHORIZATION_KEY not in keys:
        metadata.append((AUTHORIZATION_KEY, f"Bearer {context.caller.token}"))
    if context.request_id and REQUEST_ID_KEY not in keys:
        metadata.append((REQUEST_ID_KEY, context.request_id))
    if context.trace_id and TRACEPARENT_KEY not in keys:
        traceparent = (
            make_traceparent(context.trace_id, sampled=context.sampled)
            if span is None
            else span.traceparent
        )
        metadata.append((TRACEPARENT_KEY, traceparent))
    return tuple(metadata)


def _vouched(context: RequestContext, metadata: Metadata | None) -> bool:
    """Returns whether the call is authenticated with the internal token of the context."""
    if context.caller is None or not context.caller.token:
        return False
    return all(key != AUTHORIZATION_KEY for key, _ in metadata or ())


def _checked(key: str, value: str | bytes) -> tuple[str, str | bytes]:
    # gRPC makes this check only for calls over a socket; here it also applies to in-process calls.
    if not _legal_key(key) or isinstance(value, bytes) != key.endswith("-bin"):
        raise ValueError(f"metadata {key!r} is not legal")
    return key, value


@lru_cache(maxsize=512)
def _legal_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


class _Callable:
    """Starts calls of one method with the current context.

    Args:
        method: The method.
        inner: The channel that transports.
        policy: Caps on the calls.
        peer: The other side of the channel.
        connect_s: How long a call waits for a connection if its caller does not choose.
    """

    def __init__(
        self,
        method: ClientMethod,
        inner: grpc.aio.Channel,
        policy: CallPolicy,
        peer: Peer,
        connect_s: float | None = None,
    ) -> None:
        self._inner = method.open_on(inner)
        self._wrap = call_class(method.shape)
        self._cap = policy.stream_timeout_s if method.shape.streaming else policy.unary_timeout_s
        self._peer = peer
        self._connect_s = connect_s
        self._span_name = method.path.lstrip("/")

    def __call__(
        self,
        request: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        **options: Any,
    ) -> Any:
        context = current()
        vouched = _vouched(context, metadata)
        connect_s = self._connect_s if options.get("wait_for_ready") is None else None
        if connect_s is not None:
            options["wait_for_ready"] = True
        left = outgoing_timeout(context, self._cap, timeout)
        span = context.span
        if span is not None:
            attributes = rpc_attributes(self._span_name)
            span = span.child(self._span_name, SpanKind.CLIENT, attributes)
        inner = self._inner(
            request,
            timeout=left,
            metadata=outgoing_metadata(context, metadata, span),
            **options,
        )
        if span is not None:
            inner.add_done_callback(partial(end_client_span, span))
        call = self._wrap(inner, self._peer, vouched)
        if connect_s is not None:
            call.connect_within(connect_s)
        return call


class _RepeatedCallable(_Callable):
    """Starts calls that are repeated after failures.

    A call with streamed requests is repeated only if it has a `RequestStream` and streamed
    responses; the requests of others can be sent only once.
    """

    def __init__(
        self,
        method: ClientMethod,
        inner: grpc.aio.Channel,
        policy: CallPolicy,
        peer: Peer,
        repeat: RepeatPolicy,
    ) -> None:
        connect_s = repeat.away_s if method.shape.request_streaming else None
        super().__init__(method, inner, policy, peer, connect_s)
        self._method = method
        self._policy = repeat

    def __call__(
        self,
        request: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        **options: Any,
    ) -> Any:
        shape = self._method.shape
        replayable = isinstance(request, RequestStream) and shape.response_streaming
        if shape.request_streaming and not replayable:
            return super().__call__(request, timeout, metadata, **options)
        context, loop = current(), asyncio.get_running_loop()
        whole = outgoing_timeout(context, self._cap, timeout)
        deadline = None if whole is None else loop.time() + whole
        begin = super().__call__

        def attempt() -> Any:
            with use(context):
                left = None if deadline is None else max(deadline - loop.time(), 0.0)
                return begin(request, left, metadata, **options)

        path, policy = self._method.path, self._policy
        # The time until which an unreachable peer is waited for.
        latest = loop.time() + policy.away_s
        if not shape.response_streaming:
            until = latest if deadline is None else deadline
            patience_s = policy.patience_for(path, request)
            return ServiceCall(attempt, path, until=until, policy=policy, patience_s=patience_s)
        until = latest if deadline is None else min(latest, deadline)
        return RepeatedStream(attempt, path, until, policy)


class ClientChannel(WrappedChannel):
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
        super().__init__(inner)
        self._peer = ServicePeer(peer, skew)
        self._policy = policy or CallPolicy()
        self._repeat = repeat

    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method."""
        if self._repeat is None:
            return _Callable(method, self._inner, self._policy, self._peer)
        return _RepeatedCallable(method, self._inner, self._policy, self._peer, self._repeat)
