"""The Connect protocol and gRPC-Web for every public service, built from the descriptors.

`connectrpc` implements the protocols. Messages stay bytes; only JSON is converted, by their
descriptors. Each call goes to the gateway's own method table, so authentication, limits, deadlines
and forwarding to other services work as for gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc.aio
from connectrpc.codec import Codec
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message_factory import GetMessageClass

from strata.gateway.http.calls import metadata_of, request_id_in
from strata.gateway.http.errors import connect_error
from strata.gateway.http.json_messages import JsonMessages
from strata.protocol.shapes import ClientMethod, RpcShape
from strata.shared.interceptors.observe import REQUEST_ID_KEY

_IDEMPOTENCY = {
    MethodOptions.NO_SIDE_EFFECTS: IdempotencyLevel.NO_SIDE_EFFECTS,
    MethodOptions.IDEMPOTENT: IdempotencyLevel.IDEMPOTENT,
}
_STREAM_TYPES = {
    RpcShape(False, False): StreamType.UNARY,
    RpcShape(False, True): StreamType.SERVER_STREAM,
    RpcShape(True, False): StreamType.CLIENT_STREAM,
    RpcShape(True, True): StreamType.BIDI_STREAM,
}
_PROTO = "proto"
_JSON = "json"


@dataclass(frozen=True, slots=True)
class SerializedMessage:
    """A message in one of the formats of the protocols.

    Attributes:
        data: The bytes.
        codec: Name of the form: "proto" or "json".
    """

    data: bytes
    codec: str


class PassingCodec(Codec[SerializedMessage, Any]):
    """Passes the bytes of messages through; the called method converts and parses them.

    Args:
        name: Name of the form, as in content types.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """Returns the name in content types."""
        return self._name

    def encode(self, message: SerializedMessage) -> bytes:
        """Returns the bytes."""
        return message.data

    def decode(self, data: bytes | bytearray, _: type[Any]) -> SerializedMessage:
        """Returns the message of the bytes, not parsed."""
        return SerializedMessage(bytes(data), self._name)


class Forwarding:
    """Which metadata passes between the HTTP port and the calls behind it.

    The gateway passes the credentials and the ids of the trace on, and shows the id of the request.
    """

    def metadata(self, context: RequestContext[Any, Any]) -> Any:
        """Returns the metadata of the call for a request."""
        return metadata_of(context.request_headers)

    async def show_start(self, call: Any, context: RequestContext[Any, Any]) -> None:
        """Shows metadata of a call before its first response; awaited once per call."""

    def show_end(
        self,
        trailing: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]],
        context: RequestContext[Any, Any],
    ) -> None:
        """Shows metadata of a call that has ended."""
        request_id = request_id_in(dict(trailing))
        if request_id is not None:
            context.response_headers[REQUEST_ID_KEY] = request_id


class ConnectApplication(ConnectASGIApplication[None]):
    """An ASGI application with all methods of some services.

    Args:
        services: The services.
        channel: Calls them.
        messages: Converts JSON.
        max_message_bytes: Larger requests are refused.
        forwarding: Which metadata is forwarded; None for the gateway's default.
    """

    def __init__(
        self,
        services: Iterable[ServiceDescriptor],
        channel: grpc.aio.Channel,
        messages: JsonMessages,
        *,
        max_message_bytes: int,
        forwarding: Forwarding | None = None,
    ) -> None:
        forwarding = forwarding or Forwarding()
        endpoints = {
            endpoint.path: endpoint.connected()
            for service in services
            for endpoint in (
                _Method(method, channel, messages, forwarding) for method in service.methods
            )
        }
        super().__init__(
            service=None,
            endpoints=lambda _: endpoints,
            codecs=[PassingCodec(_PROTO), PassingCodec(_JSON)],
            read_max_bytes=max_message_bytes,
        )

    @property
    def path(self) -> str:
        """Returns the prefix of all paths."""
        return "/"


class _Method:
    """Calls one method of the gateway."""

    def __init__(
        self,
        descriptor: MethodDescriptor,
        channel: grpc.aio.Channel,
        messages: JsonMessages,
        forwarding: Forwarding,
    ) -> None:
        service: ServiceDescriptor = descriptor.containing_service
        self.path = f"/{service.full_name}/{descriptor.name}"
        self._shape = RpcShape(descriptor.client_streaming, descriptor.server_streaming)
        self._open = ClientMethod(self._shape, self.path).open_on(channel)
        self._messages = messages
        self._forwarding = forwarding
        self._input = GetMessageClass(descriptor.input_type)
        self._output = GetMessageClass(descriptor.output_type)
        self._info: MethodInfo[Any, Any] = MethodInfo(
            name=descriptor.name,
            service_name=service.full_name,
            input=self._input,
            output=self._output,
            idempotency_level=_IDEMPOTENCY.get(
                descriptor.GetOptions().idempotency_level, IdempotencyLevel.UNKNOWN
            ),
            stream_type=_STREAM_TYPES[self._shape],
        )

    def connected(self) -> Any:
        """Returns the endpoint of the method for `connectrpc`."""
        match self._info.stream_type:
            case StreamType.UNARY:
                return Endpoint.unary(self._info, self._unary)
            case StreamType.SERVER_STREAM:
                return Endpoint.server_stream(self._info, self._server_stream)
            case StreamType.CLIENT_STREAM:
                return Endpoint.client_stream(self._info, self._client_stream)
            case _:
                return Endpoint.bidi_stream(self._info, self._bidi_stream)

    async def _unary(
        self, request: SerializedMessage, context: RequestContext[Any, Any]
    ) -> SerializedMessage:
        with self._connect_errors(context):
            call = self._open(await self.binary(request, context), **self._options(context))
            response = await call
        await self._forwarding.show_start(call, context)
        self._forwarding.show_end(await call.trailing_metadata(), context)
        return await self._in_form_of(request.codec, response, context)

    async def _server_stream(
        self, request: SerializedMessage, context: RequestContext[Any, Any]
    ) -> AsyncIterator[SerializedMessage]:
        with self._connect_errors(context):
            call = self._open(await self.binary(request, context), **self._options(context))
        async with aclosing(self._responses(call, context)) as responses:
            async for response in responses:
                yield await self._in_form_of(request.codec, response, context)

    async def _client_stream(
        self, requests: AsyncIterator[SerializedMessage], context: RequestContext[Any, Any]
    ) -> SerializedMessage:
        call = self._open(**self._options(context))
        writer = _Writer(self, call, context)
        try:
            with self._connect_errors(context):
                await writer.write_all(requests)
                response = await call
        finally:
            call.cancel()
        await self._forwarding.show_start(call, context)
        self._forwarding.show_end(await call.trailing_metadata(), context)
        return await self._in_form_of(writer.codec, response, context)

    async def _bidi_stream(
        self, requests: AsyncIterator[SerializedMessage], context: RequestContext[Any, Any]
    ) -> AsyncIterator[SerializedMessage]:
        call = self._open(**self._options(context))
        writer = _Writer(self, call, context)
        writing = asyncio.create_task(writer.write_all(requests))
        # A malformed request ends the call, which otherwise would wait for the next one.
        writing.add_done_callback(lambda task: _failure_of(task) and call.cancel())
        try:
            async with aclosing(self._responses(call, context)) as responses:
                async for response in responses:
                    yield await self._in_form_of(writer.codec, response, context)
        except asyncio.CancelledError:
            if writing.done() and (failure := _failure_of(writing)) is not None:
                raise failure from None
            raise
        finally:
            writing.cancel()
            await asyncio.wait((writing,))

    async def _responses(
        self, call: Any, context: RequestContext[Any, Any]
    ) -> AsyncGenerator[bytes]:
        try:
            with self._connect_errors(context):
                await self._forwarding.show_start(call, context)
                async for response in call:
                    yield response
                self._forwarding.show_end(await call.trailing_metadata(), context)
        finally:
            # If the client has left, the call is over.
            call.cancel()

    async def binary(self, request: SerializedMessage, context: RequestContext[Any, Any]) -> bytes:
        """Returns the bytes of a request.

        Raises:
            ConnectError: It is malformed.
        """
        if request.codec == _PROTO:
            return request.data
        metadata = self._forwarding.metadata(context)
        return await self._messages.to_binary(request.data, self._input, metadata)

    def _options(self, context: RequestContext[Any, Any]) -> dict[str, Any]:
        remaining_ms = context.timeout_ms
        return {
            "timeout": None if remaining_ms is None else remaining_ms / 1000,
            "metadata": self._forwarding.metadata(context),
        }

    @contextmanager
    def _connect_errors(self, context: RequestContext[Any, Any]) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            self._forwarding.show_end(error.trailing_metadata() or (), context)
            raise connect_error(error) from error

    async def _in_form_of(
        self, codec: str, response: bytes, context: RequestContext[Any, Any]
    ) -> SerializedMessage:
        if codec == _JSON:
            metadata = self._forwarding.metadata(context)
            response = await self._messages.to_json(response, self._output, metadata)
        return SerializedMessage(response, codec)


class _Writer:
    """Writes the requests of a stream to a call.

    Attributes:
        codec: The form of the requests, and so of the responses.
    """

    def __init__(self, method: _Method, call: Any, context: RequestContext[Any, Any]) -> None:
        self._method = method
        self._call = call
        self._context = context
        self.codec = _PROTO

    async def write_all(self, requests: AsyncIterator[SerializedMessage]) -> None:
        """Writes the requests until they end or the call is over.

        Raises:
            ConnectError: A request is malformed.
        """
        async for request in requests:
            self.codec = request.codec
            binary = await self._method.binary(request, self._context)
            try:
                await self._call.write(binary)
            except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                # The call ended before it had read all requests; its status is the answer.
                return
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.done_writing()


def _failure_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
