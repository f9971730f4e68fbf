"""Calls of a client: as in grpc.aio, but with the errors of `strata.protocol.errors`."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import AsyncIterator, Generator
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from strata.protocol.errors import StrataError, UnavailableError
from strata.protocol.final_status import FinalStatus, is_failed_write
from strata.protocol.shapes import RpcShape
from strata.protocol.status import WireStatus, from_rpc_error


class Peer:
    """The other side of a channel; converts the errors of its calls."""

    __slots__ = ()

    def clock_due(self) -> bool:
        """Whether the time of its next answer is wanted."""
        return False

    def clock_seen(self, trailing: Any, elapsed_s: float) -> None:
        """Called with the time in an answer and the seconds since the request."""

    def not_connected(self) -> StrataError:
        """Returns the error of a call that this side ended because it got no connection."""
        raised = UnavailableError("A service that the call needs cannot be reached now.")
        # It may have got one just before it ended.
        raised.lost = True
        return raised

    def error(self, error: grpc.aio.AioRpcError, elapsed_s: float, *, vouched: bool) -> StrataError:
        """Returns the error to raise for a failed call.

        Args:
            error: How the call ended.
            elapsed_s: Seconds since the request was sent.
            vouched: The call carried the internal token of the context.
        """
        return from_rpc_error(error)


class _Waiting:
    """Converts the errors of an awaited call, and cancels it when the waiter is cancelled.

    grpc.aio (1.85) cancels a call whose waiter is cancelled, but not at every point: between
    sending the request and first reading the response it does not, and the servicer would continue
    until the deadline.
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
        if error is None:
            return
        if isinstance(error, grpc.aio.AioRpcError):
            raise self.error_of(error) from error
        if isinstance(error, asyncio.CancelledError):
            self._call.cancel()
            task = asyncio.current_task()
            if self.unconnected and (task is None or not task.cancelling()):
                raise self._peer.not_connected() from error

    def error_of(self, error: grpc.aio.AioRpcError) -> StrataError:
        """Returns the Strata error for an error of the transport."""
        elapsed = asyncio.get_running_loop().time() - self._sent
        return self._peer.error(error, elapsed, vouched=self._vouched)


_connecting: set[asyncio.Task[None]] = set()


async def _end_unconnected(call: Any, waiting: _Waiting, seconds: float) -> None:
    connected = asyncio.ensure_future(call.wait_for_connection())
    # Not cancelled when the time is over: that would cancel a task of the call itself.
    done, _ = await asyncio.wait((connected,), timeout=seconds)
    if not done:
        waiting.unconnected = True
        call.cancel()
    # The reader of the call handles its end.
    await asyncio.gather(connected, return_exceptions=True)


class Call(grpc.aio.Call):
    """Common part of the calls of all shapes."""

    def __init__(self, call: Any, peer: Peer, vouched: bool) -> None:
        self._call = call
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._sent = self._loop.time()
        self._waiting = _Waiting(call, peer, self._sent, vouched)

    def connect_within(self, seconds: float) -> None:
        """Ends a call with streamed requests UNAVAILABLE if it has no connection in that time.

        Its requests are sent a second time only after the peer refused the token, so an attempt
        waits for a connection.
        """
        # Not in the context of the caller, and without this object, which cancels itself.
        task = self._loop.create_task(
            _end_unconnected(self._call, self._waiting, seconds), context=contextvars.Context()
        )
        _connecting.add(task)
        task.add_done_callback(_connecting.discard)

    def __del__(self) -> None:
        # A call without references can never be read, but grpc.aio keeps it running until
        # its deadline (1.85): a reader that broke out of a stream would leave it open.
        call = getattr(self, "_call", None)
        if call is not None and not self._loop.is_closed() and not call.done():
            call.cancel()

    def cancel(self) -> bool:
        """Cancels the call; returns False if it has ended."""
        return bool(self._call.cancel())

    def cancelled(self) -> bool:
        """Whether the call was cancelled."""
        return bool(self._call.cancelled())

    def done(self) -> bool:
        """Whether the call has ended."""
        return bool(self._call.done())

    def time_remaining(self) -> float | None:
        """Returns the seconds until the deadline; None if there is none."""
        remaining: float | None = self._call.time_remaining()
        return remaining

    def add_done_callback(self, callback: Any) -> None:
        """Calls back when the call ends."""
        held = weakref.ref(self)
        self._call.add_done_callback(lambda inner: callback(held() or inner))

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Returns the metadata that the peer sent first."""
        metadata: grpc.aio.Metadata = await self._call.initial_metadata()
        return metadata

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Returns the metadata that the peer sent last."""
        metadata: grpc.aio.Metadata = await self._call.trailing_metadata()
        return metadata

    async def code(self) -> grpc.StatusCode:
        """Returns the status code."""
        code: grpc.StatusCode = await self._call.code()
        return code

    async def details(self) -> str:
        """Returns the text of the status."""
        details: str = await self._call.details()
        return details

    async def wait_for_connection(self) -> None:
        """Waits until the call has a connection."""
        with self._waiting:
            await self._call.wait_for_connection()

    def error_of(self, status: WireStatus) -> StrataError:
        """Returns the error for the status with which the peer ended the call."""
        cause = grpc.aio.AioRpcError(
            status.code,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*status.trailing_metadata),
            details=status.details,
        )
        error = self._waiting.error_of(cause)
        error.__cause__ = cause
        return error


class SingleResponseCall(Call):
    """A call with one response, which is awaited."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        with self._waiting:
            response = await self._call
            if self._peer.clock_due():
                trailing = await self._call.trailing_metadata()
                self._peer.clock_seen(trailing, self._loop.time() - self._sent)
            return response


class ResponseStreamCall(Call):
    """A call with streamed responses."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return _Responses(self, self._call.__aiter__(), self._waiting)

    async def read(self) -> Any:
        """Returns the next response, or `grpc.aio.EOF`."""
        with self._waiting:
            return await self._call.read()


class RequestStreamCall(Call):
    """Common part of the calls whose requests stream: they raise the error that the peer sent.

    A peer may end a call before it has read all requests, as it does with an upload that exceeds a
    quota. The next write fails then, and grpc.aio replaces the peer's status (grpc/grpc#36066).
    """

    def __init__(self, call: Any, peer: Peer, vouched: bool) -> None:
        super().__init__(call, peer, vouched)
        self._final = FinalStatus()
        call.add_done_callback(self._final.note)

    async def write(self, request: Any) -> None:
        """Sends a request of a call that has no iterator over requests."""
        try:
            with self._waiting:
                await self._call.write(request)
        except StrataError as error:
            final = await self._final_error(error)
            raise final from final.__cause__

    async def done_writing(self) -> None:
        """Ends the stream of requests."""
        with self._waiting:
            await self._call.done_writing()

    async def _final_error(self, error: StrataError) -> StrataError:
        """Returns the error that the peer sent, for one that was raised by this call.

        Returns `error` if the peer sent none, or if it is still unknown a while after a failed
        write.
        """
        if not is_failed_write(error):
            return error
        status = await self._final.after_failed_write(self._call)
        if status is None or status.code is grpc.StatusCode.OK:
            return error
        return self.error_of(status)


class RequestStreamSingleResponseCall(RequestStreamCall, SingleResponseCall):
    """A call with streamed requests and one response, which is awaited."""

    async def _result(self) -> Any:
        try:
            return await super()._result()
        except StrataError as error:
            final = await self._final_error(error)
            raise final from final.__cause__


class RequestStreamResponseStreamCall(RequestStreamCall, ResponseStreamCall):
    """A call with streamed requests and responses."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return read_all(self)

    async def read(self) -> Any:
        """Returns the next response, or `grpc.aio.EOF`."""
        try:
            # Not by `super`: each layer costs time for each response.
            with self._waiting:
                return await self._call.read()
        except StrataError as error:
            final = await self._final_error(error)
            raise final from final.__cause__


async def read_all(call: Any) -> AsyncIterator[Any]:
    """Yields the responses that the `read` of a call returns."""
    while (response := await call.read()) is not grpc.aio.EOF:
        yield response


class _Responses:
    def __init__(self, call: Call, inner: Any, waiting: _Waiting) -> None:
        # Kept because it cancels itself when it has no references.
        self._call = call
        self._waiting = waiting
        self._inner = inner

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        with self._waiting:
            return await self._inner.__anext__()


_CLASSES: dict[RpcShape, type[Call]] = {
    RpcShape(False, False): SingleResponseCall,
    RpcShape(False, True): ResponseStreamCall,
    RpcShape(True, False): RequestStreamSingleResponseCall,
    RpcShape(True, True): RequestStreamResponseStreamCall,
}


def call_class(shape: RpcShape) -> type[Call]:
    """Returns the class of the calls of a shape."""
    return _CLASSES[shape]
