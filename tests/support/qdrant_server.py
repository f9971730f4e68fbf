"""A server with Qdrant's services that stores nothing and records its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

Context = grpc.aio.ServicerContext[Any, Any]

SERVICES = ("qdrant.Points", "qdrant.Collections")


class RecordedCall(NamedTuple):
    """A received call.

    Attributes:
        method: The name of the method, such as ``Count``.
        request: The message.
        api_key: The key in the metadata.
        has_deadline: Whether the client set one.
    """

    method: str
    request: Message
    api_key: str | None
    has_deadline: bool


@dataclass
class RecordingServer:
    """See `recording_server`.

    Attributes:
        port: The port on which it listens.
        replies: The replies of methods whose reply must not be an empty message.
        failure: Status and trailing metadata with which every call fails; None to answer calls.
        calls: The received calls.
    """

    port: int = 0
    replies: dict[str, Message] = field(default_factory=dict)
    failure: tuple[grpc.StatusCode, tuple[tuple[str, str], ...]] | None = None
    calls: list[RecordedCall] = field(default_factory=list)

    def taken(self) -> list[RecordedCall]:
        """Returns the calls received since the previous `taken`."""
        calls, self.calls = self.calls, []
        return calls

    async def answer(self, method: str, request: Message, context: Context) -> Message | None:
        metadata = dict(context.invocation_metadata() or ())
        key = metadata.get("api-key")
        has_deadline = context.time_remaining() is not None
        self.calls.append(RecordedCall(method, request, str(key) if key else None, has_deadline))
        if self.failure is not None:
            status, trailing = self.failure
            await context.abort(status, "as the test wants", trailing)
        return self.replies.get(method)


@asynccontextmanager
async def recording_server(
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[RecordingServer]:
    """Runs a server on a free port of loopback, with TLS if there are credentials."""
    recording = RecordingServer()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    for service in SERVICES:
        server.add_generic_rpc_handlers((_handlers(service, recording),))
    address = "127.0.0.1:0"
    if credentials is None:
        recording.port = server.add_insecure_port(address)
    else:
        recording.port = server.add_secure_port(address, credentials)
    await server.start()
    yield recording
    await server.stop(None)


def _handlers(service: str, recording: RecordingServer) -> grpc.GenericRpcHandler:
    methods = descriptor_pool.Default().FindServiceByName(service).methods
    return grpc.method_handlers_generic_handler(
        service, {method.name: _handler(method, recording) for method in methods}
    )


def _handler(method: Any, recording: RecordingServer) -> grpc.RpcMethodHandler[Any, Any]:
    reply = GetMessageClass(method.output_type)

    async def answer(request: Message, context: Context) -> Message:
        return await recording.answer(method.name, request, context) or reply()

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=reply.SerializeToString,
    )
