"""The Connect protocol and gRPC-Web for every public service, built from the descriptors.

`connectrpc` speaks the protocols. Messages stay bytes here; only JSON is converted, by their
descriptors. Each call goes to the gateway's own method table, so authentication, limits, deadlines
and the forwarding to other services are those of gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from connectrpc.code import Code
from connectrpc.codec import Codec
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf import any_pb2, json_format
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2

from strata.gateway.http.calls import metadata_of, request_id_in
from strata.gateway.http.errors import ReadableDetail, connect_error
from strata.protocol.errors import Reason
from strata.protocol.shapes import ClientMethod, RpcShape
from strata.protocol.status import DOMAIN
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
_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True)
class SerializedMessage:
    """A message as bytes.

    Attributes:
        data: The bytes.
        type: The class of the message.
    """

    data: bytes
    type: type[Message]


class BinaryCodec(Codec[SerializedMessage, Any]):
    """Passes the bytes of messages on; the called method parses them."""

    def name(self) -> str:
        """Returns the name in content types."""
        return "proto"

    def encode(self, message: SerializedMessage) -> bytes:
        """Returns the bytes."""
        return message.data

    def decode(self, data: bytes | bytearray, message_class: type[Any]) -> SerializedMessage:
        """Returns the message of the bytes, not parsed."""
        return SerializedMessage(bytes(data), message_class)


class JsonCodec(Codec[SerializedMessage, Any]):
    """Converts messages from and to the JSON form of protobuf.

    A field that the message does not have is refused: it is a misspelled one, and without it the
    call would do something else.
    """

    def name(self) -> str:
        """Returns the name in content types."""
        return "json"

    def encode(self, message: SerializedMessage) -> bytes:
        """Returns the JSON text."""
        parsed = message.type.FromString(message.data)
        return json_format.MessageToJson(parsed, indent=None, ensure_ascii=False).encode()

    def decode(self, data: bytes | bytearray, message_class: type[Any]) -> SerializedMessage:
        """Returns the message of a JSON text; of an empty one, the empty message.

        Raises:
            ConnectError: It is not JSON, or not the JSON of the message.
        """
        message = message_class()
        try:
            if data:
                json_format.Parse(bytes(data), message)
        except (json_format.ParseError, ValueError, RecursionError) as error:
            raise _malformed(message_class, error) from error
        return SerializedMessage(message.SerializeToString(), message_class)


class ConnectApplication(ConnectASGIApplication[None]):
    """An ASGI application with all methods of some services.

    Args:
        services: The services.
        channel: Calls them.
        max_message_bytes: Larger requests are refused.
    """

    def __init__(
        self,
        services: Iterable[ServiceDescriptor],
        channel: grpc.aio.Channel,
        *,
        max_message_bytes: int,
    ) -> None:
        endpoints = {
            endpoint.path: endpoint.connected()
            for service in services
            for endpoint in (_Method(method, channel) for method in service.methods)
        }
        super().__init__(
            service=None,
            endpoints=lambda _: endpoints,
            codecs=[BinaryCodec(), JsonCodec()],
            read_max_bytes=max_message_bytes,
        )

    @property
    def path(self) -> str:
        """Returns the prefix of all paths."""
        return "/"


class _Method:
    """Calls one method of the gateway."""

    def __init__(self, descriptor: MethodDescriptor, channel: grpc.aio.Channel) -> None:
        service: ServiceDescriptor = descriptor.containing_service
        self.path = f"/{service.full_name}/{descriptor.name}"
        self._shape = RpcShape(descriptor.client_streaming, descriptor.server_streaming)
        self._open = ClientMethod(self._shape, self.path).open_on(channel)
        self._output = GetMessageClass(descriptor.output_type)
        self._info: MethodInfo[Any, Any] = MethodInfo(
            name=descriptor.name,
            service_name=service.full_name,
            input=GetMessageClass(descriptor.input_type),
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
        call = self._open(request.data, **_options(context))
        with _connect_errors(context):
            response = await call
        _show_request_id(await call.trailing_metadata(), context)
        return SerializedMessage(response, self._output)

    async def _server_stream(
        self, request: SerializedMessage, context: RequestContext[Any, Any]
    ) -> AsyncIterator[SerializedMessage]:
        call = self._open(request.data, **_options(context))
        async for message in self._responses(call, context):
            yield message

    async def _client_stream(
        self, requests: AsyncIterator[SerializedMessage], context: RequestContext[Any, Any]
    ) -> SerializedMessage:
        call = self._open(**_options(context))
        try:
            await _write_all(call, requests)
            with _connect_errors(context):
                response = await call
        finally:
            call.cancel()
        _show_request_id(await call.trailing_metadata(), context)
        return SerializedMessage(response, self._output)

    async def _bidi_stream(
        self, requests: AsyncIterator[SerializedMessage], context: RequestContext[Any, Any]
    ) -> AsyncIterator[SerializedMessage]:
        call = self._open(**_options(context))
        writing = asyncio.create_task(_write_all(call, requests))
        # A malformed request ends the call, which otherwise would wait for the next one.
        writing.add_done_callback(lambda task: _failure_of(task) and call.cancel())
        try:
            async for message in self._responses(call, context):
                yield message
        except asyncio.CancelledError:
            if writing.done() and (failure := _failure_of(writing)) is not None:
                raise failure from None
            raise
        finally:
            writing.cancel()
            await asyncio.wait((writing,))

    async def _responses(
        self, call: Any, context: RequestContext[Any, Any]
    ) -> AsyncIterator[SerializedMessage]:
        try:
            with _connect_errors(context):
                async for response in call:
                    yield SerializedMessage(response, self._output)
        finally:
            # If the client has left, the call is over.
            call.cancel()


def _options(context: RequestContext[Any, Any]) -> dict[str, Any]:
    remaining_ms = context.timeout_ms
    return {
        "timeout": None if remaining_ms is None else remaining_ms / 1000,
        "metadata": metadata_of(context.request_headers),
    }


async def _write_all(call: Any, requests: AsyncIterator[SerializedMessage]) -> None:
    try:
        async for request in requests:
            await call.write(request.data)
        await call.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
        # The call ended before it had read all requests; its status is the answer.
        return


def _failure_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


@contextmanager
def _connect_errors(context: RequestContext[Any, Any]) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        trailing = dict(error.trailing_metadata() or ())
        _show_request_id(trailing, context)
        raise connect_error(error) from error


def _malformed(message_class: type[Any], error: Exception) -> ConnectError:
    info = error_details_pb2.ErrorInfo(
        reason=Reason.MALFORMED_MESSAGE.value,
        domain=DOMAIN,
        metadata={"message": message_class.DESCRIPTOR.full_name},
    )
    packed = any_pb2.Any()
    packed.Pack(info)
    # The lines after the first list all fields.
    problem = str(error).partition("\n")[0][:_PROBLEM_CHARS]
    return ConnectError(
        Code.INVALID_ARGUMENT,
        f"The body is not the JSON of a {message_class.DESCRIPTOR.name}: {problem}",
        [ReadableDetail(packed)],
    )


def _show_request_id(
    trailing: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]],
    context: RequestContext[Any, Any],
) -> None:
    request_id = request_id_in(dict(trailing))
    if request_id is not None:
        context.response_headers[REQUEST_ID_KEY] = request_id
