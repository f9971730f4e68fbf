"""Forwards the public methods of the other services as raw bytes.

A tier's public contract is its own proto: the gateway neither parses nor repeats it.
Requests and responses pass as bytes, one at a time, so that a slow reader slows the
writer; the identity, request id, trace and deadline are added by the channel. What
the service answers (status, details, trailing metadata) is the answer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Never

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from strata.protocol.errors import InternalError, Reason, StrataError, UnavailableError
from strata.protocol.status import DETAILS_KEY, WireStatus, code_of
from strata.shared.clock_skew import SERVER_HOST_KEY
from strata.shared.context import current_project
from strata.shared.final_status import FinalStatus, is_failed_write
from strata.shared.service import GrpcService

AfterCall = Callable[[str], None]
"""Called with the project when a forwarded call has ended, successful or not."""

AfterSuccess = Callable[[bytes], Awaitable[None]]
"""Awaited with the request when a forwarded call of a unary method has succeeded, before the caller
gets the answer. It must not raise."""

_MultiCallable = Callable[..., Any]


def proxied_service(
    descriptor: ServiceDescriptor,
    channel: grpc.aio.Channel,
    after: Mapping[str, AfterCall] | None = None,
    after_success: Mapping[str, AfterSuccess] | None = None,
    defaults: Mapping[str, bytes] | None = None,
) -> GrpcService:
    """Returns a gRPC service that forwards all methods to another service.

    Args:
        descriptor: The service.
        channel: Channel to the service; it adds the metadata and raises `StrataError`.
        after: Callbacks after each call, by path of a method (``/package.Service/Method``).
        after_success: Callbacks after each successful call, by path of a unary method.
        defaults: Serialised requests with default values, by path of a unary method; fields that
            the client sets override them.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in descriptor.methods:
        path = f"/{descriptor.full_name}/{method.name}"
        handlers[path] = _handler(
            method,
            path,
            channel,
            (after or {}).get(path),
            (after_success or {}).get(path),
            (defaults or {}).get(path, b""),
        )
    return GrpcService(descriptor.full_name, _add, _Handlers(handlers))


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._handlers = handlers

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(handler_call_details.method)


def _add(handlers: grpc.GenericRpcHandler, server: grpc.aio.Server) -> None:
    server.add_generic_rpc_handlers((handlers,))


def _handler(
    method: MethodDescriptor,
    path: str,
    channel: grpc.aio.Channel,
    after: AfterCall | None,
    after_success: AfterSuccess | None,
    default: bytes,
) -> grpc.RpcMethodHandler[Any, Any]:
    shape = (method.client_streaming, method.server_streaming)
    # Without serialisers the callables take and return bytes.
    call: Any
    make: Any
    forward: type[_MethodForwarder]
    match shape:
        case (False, False):
            call, make, forward = (
                channel.unary_unary(path),
                grpc.unary_unary_rpc_method_handler,
                _UnaryUnaryForwarder,
            )
        case (False, True):
            call, make, forward = (
                channel.unary_stream(path),
                grpc.unary_stream_rpc_method_handler,
                _UnaryStreamForwarder,
            )
        case (True, False):
            call, make, forward = (
                channel.stream_unary(path),
                grpc.stream_unary_rpc_method_handler,
                _StreamUnaryForwarder,
            )
        case _:
            call, make, forward = (
                channel.stream_stream(path),
                grpc.stream_stream_rpc_method_handler,
                _StreamStreamForwarder,
            )
    forwarding = forward(path, call, after, after_success, default)
    handler: grpc.RpcMethodHandler[Any, Any] = make(forwarding.handle, None, None)
    return handler


class _MethodForwarder(ABC):
    """Forwards the calls of one method."""

    def __init__(
        self,
        path: str,
        start: _MultiCallable,
        after: AfterCall | None,
        after_success: AfterSuccess | None,
        default: bytes,
    ) -> None:
        self._default = default
        self._path = path
        self._start = start
        self._after = after
        self._after_success = after_success

    @abstractmethod
    def handle(self, request: Any, context: Any) -> Any:
        """Forwards one call."""

    def _end_call(self, call: Any) -> None:
        # Cancels the forwarded call if the caller left; a finished call ignores it.
        call.cancel()
        if self._after is not None:
            self._after(current_project())

    async def _refuse(
        self, error: StrataError, context: Any, end: _CallStatus | None = None
    ) -> Never:
        if end is not None and is_failed_write(error):
            status = await end.failed()
            if status is not None:
                await context.abort_with_status(status)
        cause = error.__cause__
        # Relay the status of the service only if the channel did not map it to another one.
        if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is code_of(error):
            trailing = _without_internal(cause.trailing_metadata())
            if any(key == DETAILS_KEY for key, _ in trailing):
                await context.abort_with_status(
                    WireStatus(cause.code(), cause.details() or "", trailing)
                )
            if isinstance(error, UnavailableError):
                # The details are gRPC's own and reveal the address of the service.
                raise UnavailableError(
                    "The service behind this method cannot be reached.",
                    reason=Reason.DEPENDENCY_UNAVAILABLE,
                    metadata={"method": self._path.lstrip("/")},
                    retry_after=1.0,
                ) from error
        raise error

    async def _write_all(self, requests: AsyncIterator[bytes], call: Any, end: _CallStatus) -> None:
        try:
            async for request in requests:
                await call.write(request)
            await call.done_writing()
        except asyncio.InvalidStateError:
            # The service responded before it had read all requests.
            return
        except InternalError as error:
            # If the service ended the call with OK, its response still has to be read.
            if not is_failed_write(error) or await end.failed() is not None:
                raise


class _CallStatus:
    """The status with which the service ended a call with a request stream."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._final = FinalStatus()
        call.add_done_callback(self._final.note)

    async def failed(self) -> WireStatus | None:
        """Returns the status, once it is known; None if it is OK or never becomes known."""
        status = await self._final.after_failed_write(self._call)
        if status is None or status.code is grpc.StatusCode.OK:
            return None
        return WireStatus(status.code, status.details, _without_internal(status.trailing_metadata))


def _without_internal(trailing: Any) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(entry for entry in trailing or () if entry[0] != SERVER_HOST_KEY)


async def _relay_trailing(call: Any, context: Any) -> None:
    trailing = _without_internal(await call.trailing_metadata())
    if trailing:
        context.set_trailing_metadata(trailing)


class _UnaryUnaryForwarder(_MethodForwarder):
    async def handle(self, request: bytes, context: Any) -> bytes:
        # In protobuf, the last value of a repeated scalar field wins.
        call = self._start(self._default + request)
        try:
            response: bytes = await call
            await _relay_trailing(call, context)
        except StrataError as error:
            await self._refuse(error, context)
        finally:
            self._end_call(call)
        if self._after_success is not None:
            # Run the callback even if the caller leaves meanwhile.
            await asyncio.shield(self._after_success(request))
        return response


class _UnaryStreamForwarder(_MethodForwarder):
    async def handle(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        call = self._start(request)
        try:
            async for response in call:
                yield response
            await _relay_trailing(call, context)
        except StrataError as error:
            await self._refuse(error, context)
        finally:
            self._end_call(call)


class _StreamUnaryForwarder(_MethodForwarder):
    async def handle(self, request: AsyncIterator[bytes], context: Any) -> bytes:
        call = self._start()
        end = _CallStatus(call)
        # The service may respond or fail while the client pauses.
        answering = asyncio.create_task(_result(call))
        writing = asyncio.create_task(self._write_all(request, call, end))
        try:
            await asyncio.wait((answering, writing), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                await writing
            response = await answering
            await _relay_trailing(call, context)
        except StrataError as error:
            await self._refuse(error, context, end)
        finally:
            for task in (answering, writing):
                task.cancel()
            await asyncio.gather(answering, writing, return_exceptions=True)
            self._end_call(call)
        return response


async def _result(call: Any) -> bytes:
    response: bytes = await call
    return response


class _StreamStreamForwarder(_MethodForwarder):
    async def handle(self, request: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        call = self._start()
        end = _CallStatus(call)
        writing = asyncio.create_task(self._write_all(request, call, end))
        # A malformed request must fail the call; the service never receives it.
        writing.add_done_callback(lambda task: _has_failed(task) and call.cancel())
        try:
            try:
                async for response in call:
                    yield response
            except asyncio.CancelledError:
                if not (writing.done() and _has_failed(writing)):
                    raise
            if writing.done():
                await writing
            await _relay_trailing(call, context)
        except StrataError as error:
            await self._refuse(error, context, end)
        finally:
            writing.cancel()
            self._end_call(call)


def _has_failed(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is not None
