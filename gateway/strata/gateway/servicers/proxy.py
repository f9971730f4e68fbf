"""Forwards the public methods of the other services as raw bytes.

A tier's public contract is its own proto: the gateway neither parses nor repeats it.
Requests and responses pass as bytes, one at a time, so that a slow reader slows the
writer; the identity, request id, trace and deadline are added by the channel. The status, details
and trailing metadata of the service are returned unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Never

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from strata.protocol.errors import Reason, StrataError, UnavailableError
from strata.protocol.final_status import is_failed_write
from strata.protocol.shapes import ClientMethod, RpcShape
from strata.protocol.status import DETAILS_KEY, WireStatus, code_of
from strata.shared.call_usage import USAGE_KEY, Trailing
from strata.shared.clock_skew import SERVER_HOST_KEY
from strata.shared.context import current_project
from strata.shared.interceptors.pipeline import rpc_handler
from strata.shared.service import GrpcService

_INTERNAL_KEYS = (SERVER_HOST_KEY, USAGE_KEY)

AfterCall = Callable[[str], None]
"""Called with the project when a forwarded call has ended, successful or not."""

Around = Callable[[bytes], AbstractAsyncContextManager[None]]
"""Called with the request of a forwarded call of a unary method, which is made in this context. Its
errors are raised there."""
AfterSuccess = Callable[[bytes], Awaitable[None]]
"""Awaited with the request when a forwarded call of a unary method has succeeded, before the caller
gets the answer. It must not raise."""


AfterAnswer = Callable[[bytes, Trailing], Awaitable[None]]
"""Awaited with the request and the trailing metadata of the service when a forwarded call of a
unary method was answered, by a response or an error, before the caller gets the answer. It must not
raise."""


def proxied_service(
    descriptor: ServiceDescriptor,
    channel: grpc.aio.Channel,
    after: Mapping[str, AfterCall] | None = None,
    after_success: Mapping[str, AfterSuccess] | None = None,
    defaults: Mapping[str, bytes] | None = None,
    around: Mapping[str, Around] | None = None,
    after_answer: Mapping[str, AfterAnswer] | None = None,
) -> GrpcService:
    """Returns a gRPC service that forwards all methods to another service.

    Args:
        descriptor: The service.
        channel: Channel to the service; it adds the metadata and raises `StrataError`.
        after: Callbacks after each call, by path of a method (``/package.Service/Method``).
        after_success: Callbacks after each successful call, by path of a unary method.
        defaults: Serialised requests with default values, by path of a unary method; fields that
            the client sets override them.
        around: Contexts of calls, by path of a unary method.
        after_answer: Callbacks after each answer, by path of a unary method.
    """
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in descriptor.methods:
        path = f"/{descriptor.full_name}/{method.name}"
        shape = RpcShape(method.client_streaming, method.server_streaming)
        forwarder = _Forwarder(
            # Without serialisers the callable takes and returns bytes.
            ClientMethod(shape, path),
            channel,
            (after or {}).get(path),
            (after_success or {}).get(path),
            (defaults or {}).get(path, b""),
            (around or {}).get(path),
            (after_answer or {}).get(path),
        )
        handlers[path] = rpc_handler(shape, forwarder.handle)
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


class _Forwarder:
    """Forwards the calls of one method."""

    def __init__(
        self,
        method: ClientMethod,
        channel: grpc.aio.Channel,
        after: AfterCall | None,
        after_success: AfterSuccess | None,
        default: bytes,
        around: Around | None,
        after_answer: AfterAnswer | None,
    ) -> None:
        self._method = method
        self._start = method.open_on(channel)
        self._after_call = after
        self._after_success = after_success
        self._default = default
        self._around = around
        self._after_answer = after_answer

    async def handle(self, request: Any, context: Any) -> Any:
        """Forwards one call.

        Args:
            request: The request, or an iterator over requests.
            context: Receives the responses where they stream, and the trailing metadata.

        Returns:
            The response; None where responses stream.
        """
        try:
            async with nullcontext() if self._around is None else self._around(request):
                response = await self._forward(request, context)
        except StrataError as error:
            if isinstance(error.__cause__, grpc.aio.AioRpcError):
                await self._note_answer(request, error.__cause__.trailing_metadata())
            await self._refuse(error, context)
        if self._after_success is not None:
            # Run the callback even if the caller leaves meanwhile.
            await asyncio.shield(self._after_success(request))
        return response

    async def _forward(self, request: Any, context: Any) -> Any:
        if self._method.shape.request_streaming:
            call = self._start()
            requests = _RequestForwarding(call, request)
        else:
            # In protobuf, the last value of a repeated scalar field wins.
            call = self._start(self._default + request)
            requests = None
        try:
            response = await self._response(call, context, requests)
            trailing = await call.trailing_metadata()
            await self._note_answer(request, trailing)
            if relayed := _without_internal(trailing):
                context.set_trailing_metadata(relayed)
            return response
        finally:
            if requests is not None:
                requests.stop()
            self._end_call(call)

    async def _response(self, call: Any, context: Any, requests: _RequestForwarding | None) -> Any:
        """Returns the response, or writes the responses to the context."""
        try:
            if not self._method.shape.response_streaming:
                return await call
            async for response in call:
                await context.write(response)
        except asyncio.CancelledError:
            if requests is not None:
                requests.raise_failure()
            raise
        return None

    async def _note_answer(self, request: bytes, trailing: Trailing | None) -> None:
        if self._after_answer is not None:
            # Run the callback even if the caller leaves meanwhile.
            await asyncio.shield(self._after_answer(request, trailing or ()))

    def _end_call(self, call: Any) -> None:
        # Cancels the forwarded call if the caller left; a finished call ignores it.
        call.cancel()
        if self._after_call is not None:
            self._after_call(current_project())

    async def _refuse(self, error: StrataError, context: Any) -> Never:
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
                    metadata={"method": self._method.path.lstrip("/")},
                    retry_after=1.0,
                ) from error
        raise error


class _RequestForwarding:
    """Writes the requests of a client to the forwarded call, in a task.

    The service may respond or fail while the client pauses. If the client fails, for example by a
    malformed request, which the service never receives, the call is cancelled.

    Args:
        call: The forwarded call.
        requests: The requests of the client.
    """

    def __init__(self, call: Any, requests: AsyncIterator[bytes]) -> None:
        self._call = call
        self._failure: Exception | None = None
        self._task = asyncio.create_task(self._write_all(requests))

    def stop(self) -> None:
        """Stops the forwarding, because the call is over."""
        self._task.cancel()

    def raise_failure(self) -> None:
        """Raises the error because of which the call was cancelled, if there is one."""
        if self._failure is not None:
            raise self._failure

    async def _write_all(self, requests: AsyncIterator[bytes]) -> None:
        try:
            await self._write(requests)
        except Exception as error:  # noqa: BLE001 - raised to the client by the reader
            self._failure = error
            self._call.cancel()

    async def _write(self, requests: AsyncIterator[bytes]) -> None:
        try:
            async for request in requests:
                await self._call.write(request)
            await self._call.done_writing()
        except asyncio.InvalidStateError:
            # The service responded before it had read all requests.
            return
        except StrataError as error:
            # If the service ended the call with OK, its response still has to be read.
            if not is_failed_write(error):
                raise


def _without_internal(trailing: Any) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(entry for entry in trailing or () if entry[0] not in _INTERNAL_KEYS)
