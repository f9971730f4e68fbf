"""The client's side of an in-process call: the call objects that generated stubs return."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator
from typing import Any

import grpc
import grpc.aio

from strata.protocol.shapes import Deserializer, RpcShape, Serializer
from strata.shared.inprocess_rpc import LOCALLY_CANCELLED, RawMetadata, Rpc, RpcOutcome

_UNREAD = object()

_log = logging.getLogger(__name__)


class _Call(grpc.aio.Call):
    """Common part of the calls of all shapes.

    Args:
        rpc: The state of the call.
        serializer: Serialises a request; None for requests that are bytes.
        deserializer: Parses a response; None for responses that stay bytes.
    """

    _poller: asyncio.Task[None] | None = None

    def __init__(
        self, rpc: Rpc, serializer: Serializer | None, deserializer: Deserializer | None
    ) -> None:
        self._rpc = rpc
        self._serializer = serializer
        self._deserializer = deserializer

    def cancel(self) -> bool:
        return self._rpc.cancel(LOCALLY_CANCELLED)

    def cancelled(self) -> bool:
        outcome = self._rpc.outcome
        return outcome is not None and outcome.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._rpc.outcome is not None

    def time_remaining(self) -> float | None:
        return self._rpc.time_remaining()

    def add_done_callback(self, callback: Any) -> None:
        self._rpc.add_done_callback(lambda: callback(self))

    async def initial_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*await self._rpc.wait_started())

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await self._rpc.wait()).trailing)

    async def code(self) -> grpc.StatusCode:
        return (await self._rpc.wait()).code

    async def details(self) -> str:
        return (await self._rpc.wait()).details

    async def debug_error_string(self) -> str:
        return await self.details()

    async def wait_for_connection(self) -> None:
        outcome = self._rpc.outcome
        if outcome is not None:
            self._raise_for(outcome)

    def _decode(self, raw: bytes) -> Any:
        return raw if self._deserializer is None else self._deserializer(raw)

    def _encode(self, message: Any) -> bytes:
        return message if self._serializer is None else self._serializer(message)

    def _raise_for(self, outcome: RpcOutcome) -> None:
        if outcome.code is grpc.StatusCode.OK:
            return
        if outcome.local and outcome.code is grpc.StatusCode.CANCELLED:
            raise asyncio.CancelledError
        raise rpc_error(outcome, self._rpc.initial or ())

    async def _read(self) -> Any:
        try:
            raw = await self._rpc.responses.get()
        except asyncio.CancelledError:
            self._rpc.cancel()
            raise
        if raw is None:
            self._raise_for(await self._rpc.wait())
            return grpc.aio.EOF
        return self._decode(raw)

    def consume(self, requests: Any) -> None:
        """Sends the requests of an iterator; without one, the caller uses `write`."""
        if requests is not None:
            poller = self._rpc.loop.create_task(_consume(self._rpc, self._encode, requests))
            self._poller = poller

            def stop() -> None:
                poller.cancel()

            self._rpc.add_done_callback(stop)

    async def write(self, request: Any) -> None:
        if self._poller is not None:
            raise grpc.aio.UsageError("The call was started with an iterator of requests.")
        outcome = self._rpc.outcome
        if outcome is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._rpc.requests.closed:
            raise asyncio.InvalidStateError("RPC is half closed after calling done_writing.")
        try:
            await self._rpc.requests.put(self._encode(request))
        except asyncio.CancelledError:
            self._rpc.cancel()
            raise
        outcome = self._rpc.outcome
        if outcome is not None:
            self._raise_for(outcome)

    async def done_writing(self) -> None:
        if self._poller is not None:
            raise grpc.aio.UsageError("The call was started with an iterator of requests.")
        self._rpc.requests.close()


def rpc_error(outcome: RpcOutcome, initial: RawMetadata) -> grpc.aio.AioRpcError:
    """Returns the exception that gRPC raises for this outcome."""
    return grpc.aio.AioRpcError(
        outcome.code,
        grpc.aio.Metadata(*initial),
        grpc.aio.Metadata(*outcome.trailing),
        details=outcome.details,
    )


class _SingleResponseCall(_Call):
    """A call with one response, which is awaited."""

    _value: Any = _UNREAD

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        rpc = self._rpc
        outcome = rpc.outcome
        if outcome is None:
            try:
                outcome = await rpc.wait()
            except asyncio.CancelledError:
                rpc.cancel()
                raise
        self._raise_for(outcome)
        return await self._response()

    async def _response(self) -> Any:
        if self._value is not _UNREAD:
            return self._value
        raw = await self._rpc.responses.get()
        if raw is None:
            missing = RpcOutcome(grpc.StatusCode.INTERNAL, "The response is missing.")
            raise rpc_error(missing, self._rpc.initial or ())
        # Awaiting the call again returns the same response.
        self._value = self._decode(raw)
        return self._value


class _ResponseStreamCall(_Call):
    """A call with streamed responses."""

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self._read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    async def read(self) -> Any:
        return await self._read()


async def _consume(rpc: Rpc, encode: Callable[[Any], bytes], requests: Any) -> None:
    try:
        if isinstance(requests, AsyncIterable):
            async for request in requests:
                if not await rpc.requests.put(encode(request)):
                    return
        else:
            for request in requests:
                if not await rpc.requests.put(encode(request)):
                    return
        rpc.requests.close()
    except Exception:  # noqa: BLE001 - it is the iterator of the caller
        # gRPC cancels the call too; the client sees CancelledError where it awaits.
        _log.warning("the iterator of requests failed", exc_info=True)
        rpc.cancel()


def call_class(shape: RpcShape) -> type[_Call]:
    """Returns the class of the calls of a shape."""
    return _ResponseStreamCall if shape.response_streaming else _SingleResponseCall
