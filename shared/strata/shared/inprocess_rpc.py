"""The state of one in-process call, shared by its client side and its server side.

Messages are passed as bytes through bounded queues, which slow the faster side down. The handler
runs in a separate task with an empty context, so that a servicer gets data about its caller only
what the metadata contains, as over a socket.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never

import grpc
import grpc.aio

from strata.protocol.errors import Reason, UnavailableError
from strata.protocol.status import to_status
from strata.shared.interceptors.pipeline import WrappedMethod

RawMetadata = tuple[tuple[str, str | bytes], ...]

LOCALLY_CANCELLED = "Locally cancelled by application!"
_QUEUE_MESSAGES = 32
_QUEUE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class RpcOutcome:
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: RawMetadata = ()
    local: bool = False


class Pipe:
    """A bounded queue of messages for one reader.

    At most 32 messages or 256 KiB wait in it, but always at least one message fits.
    """

    __slots__ = ("_bytes", "_closed", "_items", "_loop", "_reader", "_writers")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []

    @property
    def closed(self) -> bool:
        """Whether the pipe accepts no more messages."""
        return self._closed

    async def put(self, item: bytes) -> bool:
        """Waits for space and adds the message; returns False if the pipe is closed."""
        while not self._closed and self._full():
            turn = self._loop.create_future()
            self._writers.append(turn)
            await turn
        return self.put_nowait(item)

    def put_nowait(self, item: bytes) -> bool:
        """Adds the message without waiting; returns False if the pipe is closed."""
        if self._closed:
            return False
        self._items.append(item)
        self._bytes += len(item)
        self._wake_reader()
        return True

    async def get(self) -> bytes | None:
        """Returns the next message, waiting for it; None at the end."""
        while not self._items:
            if self._closed:
                return None
            if self._writers:
                self._wake_writers()
            self._reader = self._loop.create_future()
            await self._reader
        item = self._items.popleft()
        self._bytes -= len(item)
        if self._writers and not self._full():
            self._wake_writers()
        return item

    def close(self, *, discard: bool = False) -> None:
        """Closes the pipe; messages in it can still be read unless `discard` is set."""
        self._closed = True
        if discard:
            self._items.clear()
            self._bytes = 0
        self._wake_reader()
        if self._writers:
            self._wake_writers()

    def _full(self) -> bool:
        return len(self._items) >= _QUEUE_MESSAGES or self._bytes >= _QUEUE_BYTES

    def _wake_writers(self) -> None:
        # All of them, because one may have been cancelled; each checks again for space.
        writers, self._writers = self._writers, []
        _wake(writers)

    def _wake_reader(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)


class Rpc:
    """The state of one call.

    Args:
        loop: The event loop of both halves.
        peer: The address of the peer for the servicer.
        metadata: The metadata that the client sent.
        timeout: Seconds until the deadline, None for none.
    """

    __slots__ = (
        "_callbacks", "_done", "_started", "_task", "_timer", "deadline", "initial", "loop",
        "metadata", "outcome", "peer", "requests", "responses",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peer: str,
        metadata: RawMetadata,
        timeout: float | None,
    ) -> None:
        self.loop = loop
        self.peer = peer
        self.metadata = metadata
        self.requests = Pipe(loop)
        self.responses = Pipe(loop)
        self.initial: RawMetadata | None = None
        self.outcome: RpcOutcome | None = None
        self.deadline: float | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._done: list[asyncio.Future[None]] = []
        self._started: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self.deadline = loop.time() + timeout
            self._timer = loop.call_at(self.deadline, self._expire)

    def start(self, wrapped: WrappedMethod) -> asyncio.Task[None]:
        """Starts the handler in a task with an empty context."""
        self._task = self.loop.create_task(self._serve(wrapped), context=contextvars.Context())
        return self._task

    def finish(self, outcome: RpcOutcome) -> bool:
        """Ends the call; returns False if it had ended before."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        if self._timer is not None:
            self._timer.cancel()
        if self.initial is None:
            self.initial = ()
        self.requests.close(discard=True)
        self.responses.close(discard=outcome.code is not grpc.StatusCode.OK and outcome.local)
        _wake(self._started)
        _wake(self._done)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def cancel(self, details: str = LOCALLY_CANCELLED) -> bool:
        """Ends the call from the client's side and cancels the handler."""
        return self._abandon(RpcOutcome(grpc.StatusCode.CANCELLED, details, local=True))

    def time_remaining(self) -> float | None:
        """Returns the seconds left, never negative; None without a deadline."""
        if self.deadline is None:
            return None
        return max(self.deadline - self.loop.time(), 0.0)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Calls back when the call ends, or at once if it has ended."""
        if self.outcome is not None:
            callback()
        else:
            self._callbacks.append(callback)

    async def wait(self) -> RpcOutcome:
        """Waits for the end."""
        if self.outcome is None:
            await self._wait_in(self._done)
        assert self.outcome is not None
        return self.outcome

    async def wait_started(self) -> RawMetadata:
        """Waits for the initial metadata."""
        if self.initial is None:
            await self._wait_in(self._started)
        return self.initial or ()

    def send_initial(self, metadata: RawMetadata) -> None:
        """Sends the initial metadata to the client; further calls are ignored."""
        if self.initial is None:
            self.initial = metadata
            _wake(self._started)

    async def _wait_in(self, waiters: list[asyncio.Future[None]]) -> None:
        waiter = self.loop.create_future()
        waiters.append(waiter)
        await waiter

    def _expire(self) -> None:
        self._abandon(
            RpcOutcome(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", local=True)
        )

    def _abandon(self, outcome: RpcOutcome) -> bool:
        ended = self.finish(outcome)
        if self._task is not None and not self._task.done():
            self._task.cancel()
        return ended

    async def _serve(self, wrapped: WrappedMethod) -> None:
        context = InProcessContext(self)
        try:
            request: Any = _RequestIterator(self)
            if not wrapped.method.shape.request_streaming:
                request = await self.requests.get()
                if request is None:
                    self.finish(RpcOutcome(grpc.StatusCode.INTERNAL, "The request is missing."))
                    return
            response = await wrapped.handle(request, context)
            if not wrapped.method.shape.response_streaming:
                self.responses.put_nowait(response)
            self.finish(context.outcome())
        except grpc.aio.AbortError:
            self.finish(context.outcome())
        except asyncio.CancelledError:
            # Cancelled by the client (then `finish` does nothing) or by the closing network.
            self.finish(unavailable("The service is shutting down.", Reason.SHUTTING_DOWN))
        except Exception as error:
            # The interceptors map all errors; a server without them does not.
            self.finish(RpcOutcome(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error).__name__}"))
            raise


class _RequestIterator:
    """The requests of a stream, as a servicer iterates over them."""

    __slots__ = ("_rpc",)

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    def __aiter__(self) -> _RequestIterator:
        return self

    async def __anext__(self) -> bytes:
        item = await self._rpc.requests.get()
        if item is None:
            raise StopAsyncIteration
        return item


class InProcessContext(grpc.aio.ServicerContext[Any, Any]):
    """The servicer context that a handler gets."""

    __slots__ = ("_code", "_details", "_rpc", "_trailing")

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailing: RawMetadata = ()

    def outcome(self) -> RpcOutcome:
        """Returns the outcome of the call if it ended now."""
        return RpcOutcome(self._code, self._details, self._trailing)

    async def read(self) -> Any:
        """Reads the next request, `grpc.aio.EOF` at the end."""
        item = await self._rpc.requests.get()
        return grpc.aio.EOF if item is None else item

    async def write(self, message: Any) -> None:
        """Sends a response; waits while the client is behind."""
        self._rpc.send_initial(())
        if not await self._rpc.responses.put(message):
            # The client has ended the call, and the handler's task is about to be cancelled.
            raise asyncio.CancelledError

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> Never:
        """Ends the call with a status."""
        if code is grpc.StatusCode.OK:
            raise ValueError("abort needs a status that is not OK")
        self._code, self._details = code, details
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: grpc.Status) -> Never:
        """Ends the call with a status."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Sends the initial metadata."""
        self._rpc.send_initial(tuple(initial_metadata))

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Sets the trailing metadata, which is sent at the end."""
        self._trailing = tuple(trailing_metadata)

    def invocation_metadata(self) -> Any:
        """Returns the metadata that the client sent."""
        return self._rpc.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """Sets the final status code."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Sets the text of the final status."""
        self._details = details

    def set_compression(self, compression: grpc.Compression) -> None:
        """Does nothing: nothing is compressed within a process."""

    def disable_next_message_compression(self) -> None:
        """Does nothing: nothing is compressed within a process."""

    def peer(self) -> str:
        """Returns the name of the network."""
        return self._rpc.peer

    def peer_identities(self) -> Iterable[bytes] | None:
        """Returns None: identity is in the token."""
        return None

    def peer_identity_key(self) -> str | None:
        """Returns None: identity is in the token."""
        return None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Returns nothing: there is no transport security within a process."""
        return {}

    def time_remaining(self) -> float | None:  # type: ignore[override]
        """Returns the seconds left, None without a deadline, as gRPC's own does."""
        return self._rpc.time_remaining()

    def trailing_metadata(self) -> Any:
        """Returns the trailing metadata."""
        return self._trailing

    def code(self) -> grpc.StatusCode:
        """Returns the final status code."""
        return self._code

    def details(self) -> str:
        """Returns the text of the final status."""
        return self._details

    def add_done_callback(self, callback: Any) -> None:
        """Calls back with this context when the call ends."""
        self._rpc.add_done_callback(lambda: callback(self))

    def cancelled(self) -> bool:
        """Whether the client cancelled."""
        outcome = self._rpc.outcome
        return outcome is not None and outcome.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._rpc.outcome is not None


def unavailable(text: str, reason: Reason) -> RpcOutcome:
    """Returns the outcome of a call that the network refuses or aborts."""
    status = to_status(UnavailableError(text, reason=reason))
    return RpcOutcome(status.code, status.details, status.trailing_metadata)


def _wake(waiters: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
