"""The channel to a gateway: sends the API key, converts errors, and repeats repeatable calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from strata.protocol.attempts import RepeatedCall, RepeatLimits
from strata.protocol.calls import Peer, call_class
from strata.protocol.connections import ConnectionOptions, repeatable_methods
from strata.protocol.request_ids import has_request_id, request_id_numbers
from strata.protocol.shapes import ClientMethod, WrappedChannel
from strata.protocol.tls import ClientTls

CALL_S = 30.0
"""Deadline of a unary call in seconds."""

_AUTHORIZATION = "authorization"
_LIMITS = RepeatLimits(max_attempts=3)
# Proxies may treat more frequent pings as an attack.
_PING_S = 10.0
_PEER = Peer()


class _Method:
    """Starts calls of one method.

    Args:
        method: The method.
        inner: The channel that transports.
        api_key: Sent with each call.
        longest_s: Deadline of a call in seconds; None for none.
    """

    def __init__(
        self,
        method: ClientMethod,
        inner: grpc.aio.Channel,
        api_key: str,
        longest_s: float | None,
    ) -> None:
        self._inner = method.open_on(inner)
        self._wrap = call_class(method.shape)
        self._key = (_AUTHORIZATION, f"Bearer {api_key}")
        self._longest_s = longest_s

    def __call__(
        self,
        request: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        **options: Any,
    ) -> Any:
        return self._start(request, self._deadline(timeout), metadata, options)

    def _deadline(self, timeout: float | None) -> float | None:
        limits = (limit for limit in (self._longest_s, timeout) if limit is not None)
        return min(limits, default=None)

    def _start(
        self, request: Any, timeout: float | None, metadata: Any, options: dict[str, Any]
    ) -> Any:
        sent = [*(metadata or ())]
        if all(key != _AUTHORIZATION for key, _ in sent):
            sent.append(self._key)
        call = self._inner(request, timeout=timeout, metadata=tuple(sent), **options)
        return self._wrap(call, _PEER, False)


class _RepeatedMethod(_Method):
    """Starts calls that are attempted a few times within their deadline."""

    def __init__(
        self,
        method: ClientMethod,
        inner: grpc.aio.Channel,
        api_key: str,
        longest_s: float | None,
        limits: RepeatLimits,
        request_id_number: int | None,
    ) -> None:
        super().__init__(method, inner, api_key, longest_s)
        self._path = method.path
        self._limits = limits
        self._request_id_number = request_id_number

    def __call__(
        self,
        request: Any = None,
        timeout: float | None = None,
        metadata: Any = None,
        **options: Any,
    ) -> Any:
        number = self._request_id_number
        if number is not None and not has_request_id(request, number):
            return super().__call__(request, timeout, metadata, **options)
        now = asyncio.get_running_loop().time
        whole = self._deadline(timeout)
        until = math.inf if whole is None else now() + whole

        def attempt() -> Any:
            left = None if whole is None else max(until - now(), 0.0)
            return self._start(request, left, metadata, options)

        return RepeatedCall(attempt, self._path, until, self._limits)


class GatewayChannel(WrappedChannel):
    """A channel whose calls carry the API key and raise the errors of `strata.protocol.errors`.

    Args:
        inner: The channel that transports.
        api_key: Sent with each call.
        services: Their contracts declare which unary methods are repeated; those with a
            ``request_id`` are if the request has one.
        timeout_s: Deadline of a unary call in seconds; None for none. Streams have none.
        limits: How often repeatable methods are attempted.
    """

    def __init__(
        self,
        inner: grpc.aio.Channel,
        api_key: str,
        services: Iterable[ServiceDescriptor] = (),
        *,
        timeout_s: float | None = CALL_S,
        limits: RepeatLimits = _LIMITS,
    ) -> None:
        super().__init__(inner)
        self._api_key = api_key
        services = tuple(services)
        self._repeatable = {path for path, _ in repeatable_methods(services)}
        self._request_id_numbers = request_id_numbers(services)
        self._timeout_s = timeout_s
        self._limits = limits

    def open_method(self, method: ClientMethod) -> Any:
        """Returns the callable of a method."""
        longest_s = None if method.shape.streaming else self._timeout_s
        if method.path in self._repeatable:
            number = self._request_id_numbers.get(method.path)
            return _RepeatedMethod(
                method, self._inner, self._api_key, longest_s, self._limits, number
            )
        return _Method(method, self._inner, self._api_key, longest_s)


@asynccontextmanager
async def open_gateway_channel(
    address: str,
    api_key: str,
    services: Iterable[ServiceDescriptor],
    *,
    tls: ClientTls | None = None,
    timeout_s: float | None = CALL_S,
    limits: RepeatLimits = _LIMITS,
) -> AsyncIterator[GatewayChannel]:
    """Opens a channel to a gateway for the length of the block; it connects at the first call.

    Args:
        address: A gRPC target.
        api_key: Sent with each call.
        services: Their contracts declare which unary methods are repeated.
        tls: TLS settings; None for no TLS.
        timeout_s: Deadline of a unary call in seconds; None for none. Streams have none.
        limits: How often repeatable methods are attempted.

    Raises:
        FailedPreconditionError: A file of the TLS settings cannot be used.
    """
    arguments = ConnectionOptions(local_subchannels=True, keepalive_s=_PING_S).arguments()
    inner: grpc.aio.Channel = (
        grpc.aio.insecure_channel(address, options=arguments)
        if tls is None
        else grpc.aio.secure_channel(address, tls.credentials(), options=arguments)
    )
    async with GatewayChannel(
        inner, api_key, services, timeout_s=timeout_s, limits=limits
    ) as channel:
        yield channel
