"""The server side of a call, the same over a socket and in-process.

gRPC's own interceptors run per call and see a different handler for each of the
four shapes of RPC. Here every shape is one coroutine ``handle(request, context)``
that takes raw bytes: a streamed response is written inside it, so an interceptor
around the coroutine covers the whole iteration. The chain is built once per
method. Its innermost part parses and serialises messages, so malformed bytes
raise an ordinary error, and only after authentication.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from strata.protocol.errors import (
    InvalidArgumentError,
    Reason,
    ResourceExhaustedError,
    UnimplementedError,
)
from strata.protocol.shapes import RpcShape
from strata.shared.context import Caller

INFRASTRUCTURE = frozenset(
    {
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
)
"""Services for probes and tools: not authenticated, not shed, without imposed deadline."""

_CACHED_METHODS = 1024


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method as served.

    Attributes:
        path: ``/package.Service/Method``.
        service: Full name of the service.
        shape: Which sides stream.
        known: False for a path without a handler.
    """

    path: str
    service: str
    shape: RpcShape
    known: bool = True

    @property
    def infrastructure(self) -> bool:
        """Whether this is health or reflection."""
        return self.service in INFRASTRUCTURE

    @property
    def label(self) -> str:
        """The path for logs and metrics; all unknown paths share one name."""
        return self.path if self.known else "unknown"


class ServerCall:
    """One call on its way through the interceptors.

    Attributes:
        method: The method that is called.
        request: The serialised request, or the iterator over the requests.
        context: The transport's `grpc.aio.ServicerContext`.
        metadata: The metadata of the caller, with the last value of each key.
        code: The final status, for the interceptors outside of `MapErrors`.
        reason: The reason of the final status, if the call failed with a `StrataError`.
        detail: The detail of that error, for the log.
        caller: The authenticated caller.
        trailing: Trailing metadata of every answer, errors included.
        stopped: Whether the server ends the call because it stops.
    """

    __slots__ = (
        "caller", "code", "context", "detail", "metadata", "method", "reason", "request",
        "stopped", "trailing",
    )  # fmt: skip

    def __init__(self, method: ServedMethod, request: Any, context: Any) -> None:
        self.method = method
        self.request = request
        self.context = context
        self.metadata: Mapping[str, str | bytes] = dict(context.invocation_metadata() or ())
        self.code = grpc.StatusCode.OK
        self.reason: Reason | None = None
        self.detail = ""
        self.caller: Caller | None = None
        self.trailing: tuple[tuple[str, str | bytes], ...] = ()
        self.stopped = False


Next = Callable[[ServerCall], Awaitable[Any]]
"""The rest of the chain; gives the serialised response, None where it was streamed."""

Handle = Callable[[Any, Any], Awaitable[Any]]


class ServerInterceptor(Protocol):
    """Surrounds the calls of a method."""

    def bind(self, method: ServedMethod, proceed: Next) -> Next:
        """Returns the function that runs instead of `proceed`, or `proceed` to do nothing."""
        ...


@dataclass(frozen=True, slots=True)
class WrappedMethod:
    """A method with the interceptors around it, ready to be called with bytes."""

    method: ServedMethod
    handle: Handle
    rpc_handler: grpc.RpcMethodHandler[Any, Any]


class MethodTable(grpc.GenericRpcHandler):
    """All methods of one server, wrapped in its interceptors.

    Pass it as the server to the generated ``add_<Name>Servicer_to_server``. A custom handler
    (a proxy) should return the same object for the same method, so that the chain around it is
    built once.

    Args:
        interceptors: Outermost first.
        max_message_bytes: Larger requests and responses are refused.
    """

    def __init__(
        self, interceptors: Sequence[ServerInterceptor], *, max_message_bytes: int
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._limit = max_message_bytes
        self._generic: list[grpc.GenericRpcHandler] = []
        self._wrapped_methods: dict[str, tuple[object, WrappedMethod]] = {}
        self._running: dict[asyncio.Task[Any], ServerCall] = {}
        self._stopped = False

    def stop(self) -> set[asyncio.Task[Any]]:
        """Ends the calls that run, and every later one, with UNAVAILABLE (``SHUTTING_DOWN``).

        gRPC would end them as CANCELLED, which callers do not retry.

        Returns:
            The tasks that are being cancelled.
        """
        self._stopped = True
        ending = set()
        for task, call in self._running.items():
            if not call.stopped:
                call.stopped = True
                task.cancel()
            ending.add(task)
        return ending

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds handlers; the first one that has a method serves it."""
        self._generic.extend(handlers)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Does nothing, because generated code registers each method twice."""

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Returns the handler of a method, for gRPC; unknown methods get UNIMPLEMENTED."""
        return self.wrapped_method(handler_call_details).rpc_handler

    def wrapped_method(self, details: grpc.HandlerCallDetails) -> WrappedMethod:
        """Returns a method with its interceptors, known or not."""
        raw: grpc.RpcMethodHandler[Any, Any] | None = None
        for generic in self._generic:
            raw = generic.service(details)
            if raw is not None:
                break
        path = details.method
        cached = self._wrapped_methods.get(path)
        if cached is not None and cached[0] is raw:
            return cached[1]
        wrapped = self._build(path, raw)
        # Clients can call any path, so the size of the cache is bounded.
        if len(self._wrapped_methods) < _CACHED_METHODS:
            self._wrapped_methods[path] = (raw, wrapped)
        return wrapped

    def _build(self, path: str, raw: grpc.RpcMethodHandler[Any, Any] | None) -> WrappedMethod:
        service = path.rpartition("/")[0].lstrip("/")
        if raw is None:
            method = ServedMethod(path, service, RpcShape(True, True), known=False)
            proceed: Next = _refuse_unknown
        else:
            shape = RpcShape(raw.request_streaming, raw.response_streaming)
            method = ServedMethod(path, service, shape)
            proceed = _Invocation(method, raw, self._limit)
        for interceptor in reversed(self._interceptors):
            proceed = interceptor.bind(method, proceed)
        chain = proceed

        async def handle(request: Any, context: Any) -> Any:
            call = ServerCall(method, request, context)
            call.stopped = self._stopped
            task = asyncio.current_task()
            assert task is not None
            self._running[task] = call
            try:
                return await chain(call)
            finally:
                del self._running[task]

        return WrappedMethod(method, handle, rpc_handler(method.shape, handle))


def rpc_handler(shape: RpcShape, handle: Handle) -> grpc.RpcMethodHandler[Any, Any]:
    """Returns gRPC's handler for a method of a shape, which is implemented with bytes.

    Args:
        shape: Which sides stream.
        handle: Takes the request, or an iterator over requests, and the context. It returns the
            response, or writes the responses to the context.
    """
    handler: grpc.RpcMethodHandler[Any, Any]
    handler = getattr(grpc, f"{shape.name}_rpc_method_handler")(handle, None, None)
    return handler


async def _refuse_unknown(call: ServerCall) -> None:
    raise not_built(call.method.path)


def not_built(path: str) -> UnimplementedError:
    """Returns the error for a method that has no implementation in this release."""
    return UnimplementedError(
        f"{path} is not built in this release.", metadata={"method": path.lstrip("/")}
    )


class _Invocation:
    """The innermost end of the chain: parses, calls the servicer, serialises."""

    def __init__(
        self, method: ServedMethod, handler: grpc.RpcMethodHandler[Any, Any], limit: int
    ) -> None:
        self._method = method
        self._limit = limit
        self._deserializer = handler.request_deserializer
        self._serializer = handler.response_serializer
        self._behavior: Any = getattr(handler, method.shape.name)

    async def __call__(self, call: ServerCall) -> Any:
        request = (
            self._decode_all(call.request)
            if self._method.shape.request_streaming
            else self.decode(call.request)
        )
        try:
            result = self._behavior(request, HandlerContext(call.context, self))
        except NotImplementedError as error:
            # Raised synchronously by the generated base class of servicers; our own methods are
            # coroutines or generators and raise only when they are awaited.
            raise not_built(self._method.path) from error
        if not self._method.shape.response_streaming:
            return self.encode(await result)
        if not hasattr(result, "__aiter__"):
            await result
            return None
        try:
            async for response in result:
                await call.context.write(self.encode(response))
        finally:
            if hasattr(result, "aclose"):
                await result.aclose()
        return None

    def decode(self, raw: bytes) -> Any:
        """Returns the message in the bytes.

        Raises:
            InvalidArgumentError: Not a message of the type (``MALFORMED_MESSAGE``).
            ResourceExhaustedError: Larger than the limit (``MESSAGE_TOO_LARGE``).
        """
        self._check_size(raw, "request")
        if self._deserializer is None:
            return raw
        try:
            return self._deserializer(raw)
        except Exception as error:
            raise InvalidArgumentError(
                "The bytes of the request are not a message of the method's type.",
                reason=Reason.MALFORMED_MESSAGE,
                metadata={"method": self._method.path.lstrip("/")},
            ) from error

    async def _decode_all(self, requests: Any) -> AsyncIterator[Any]:
        async for raw in requests:
            yield self.decode(raw)

    def encode(self, response: Any) -> bytes:
        """Returns the bytes of a response.

        Raises:
            ResourceExhaustedError: Larger than the limit (``MESSAGE_TOO_LARGE``).
        """
        raw: bytes = response if self._serializer is None else self._serializer(response)
        self._check_size(raw, "response")
        return raw

    def _check_size(self, raw: bytes, what: str) -> None:
        if len(raw) > self._limit:
            raise ResourceExhaustedError(
                f"The {what} has {len(raw)} bytes, more than the {self._limit} allowed.",
                reason=Reason.MESSAGE_TOO_LARGE,
                metadata={"limit_bytes": self._limit},
            )


class HandlerContext:
    """The context that a servicer gets: the transport's, with messages instead of bytes."""

    __slots__ = ("_codec", "_transport")

    def __init__(self, transport: Any, codec: _Invocation) -> None:
        self._transport = transport
        self._codec = codec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def read(self) -> Any:
        """Reads the next request of a stream, `grpc.aio.EOF` at its end."""
        raw = await self._transport.read()
        return raw if raw is grpc.aio.EOF else self._codec.decode(raw)

    async def write(self, message: Any) -> None:
        """Writes a response of a stream."""
        await self._transport.write(self._codec.encode(message))
