"""The service of Connect's conformance tests, behind the endpoints of the HTTP port.

`connectconformance` starts this program, writes what it needs to the standard input, and reads the
address from the standard output. The calls pass the code of the gateway's HTTP port and reach the
service by gRPC. The gateway forwards few headers; here all of them are forwarded, because the tests
compare them. They are sent as JSON in one entry of the metadata.

The argument is the folder with the generated code of the conformance protos.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import struct
import sys
from collections.abc import AsyncIterator, Iterable
from typing import Any

import connectrpc
import grpc.aio
import uvicorn
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import status_pb2

from strata.gateway.http.connect import ConnectApplication, Forwarding
from strata.gateway.http.json_messages import JsonMessages, LargeBodies

# The generated code has the package of the library.
connectrpc.__path__.append(f"{sys.argv[1]}/connectrpc")
_CODE = "connectrpc.conformance.v1"
config_pb2: Any = importlib.import_module(f"{_CODE}.config_pb2")
server_pb2: Any = importlib.import_module(f"{_CODE}.server_compat_pb2")
service_pb2: Any = importlib.import_module(f"{_CODE}.service_pb2")
service_grpc: Any = importlib.import_module(f"{_CODE}.service_pb2_grpc")

_HEADERS = "x-headers"
_STATUS = "grpc-status-details-bin"


class AllHeaders(Forwarding):
    """Passes all headers of requests and responses."""

    def metadata(self, context: Any) -> Any:
        headers: dict[str, list[str]] = {}
        for name, value in context.request_headers.allitems():
            headers.setdefault(name, []).append(value)
        return ((_HEADERS, json.dumps(headers)),)

    async def show_start(self, call: Any, context: Any) -> None:
        self._show(await call.initial_metadata() or (), context.response_headers)

    def show_end(self, trailing: Any, context: Any) -> None:
        for key, value in trailing:
            if key == f"{_HEADERS}-of-error":
                self._show(((_HEADERS, value),), context.response_headers)
        self._show(trailing, context.response_trailers)

    @staticmethod
    def _show(metadata: Any, target: Any) -> None:
        for key, value in metadata:
            if key == _HEADERS:
                for name, values in json.loads(value):
                    for one in values:
                        target.add(name, one)


class KeylessBodies(LargeBodies):
    """Handles bodies of any size: the service has no keys."""

    async def check_key(self, body: bytes, metadata: Any) -> None:
        return


def written(headers: Iterable[Any]) -> str:
    return json.dumps([(header.name, list(header.value)) for header in headers])


def packed(message: Message) -> AnyMessage:
    value = AnyMessage()
    value.Pack(message)
    return value


def request_info(context: Any, requests: Iterable[Message], *, whole: bool = True) -> Any:
    info = service_pb2.ConformancePayload.RequestInfo(requests=map(packed, requests))
    if whole:
        sent = json.loads(dict(context.invocation_metadata())[_HEADERS])
        for name, values in sent.items():
            info.request_headers.add(name=name, value=values)
        remaining_s = context.time_remaining()
        if remaining_s is not None and remaining_s < 1e6:
            # gRPC adds a few milliseconds, for the clocks of others.
            info.timeout_ms = int(remaining_s * 1000) // 50 * 50
    return info


async def fail(context: Any, error: Any, info: Any | None, headers: str) -> None:
    """Ends the call with an error."""
    status = status_pb2.Status(code=error.code, message=error.message, details=error.details)
    if info is not None:
        status.details.append(packed(info))
    trailing = list(context.trailing_metadata() or ())
    trailing += [(_STATUS, status.SerializeToString()), (f"{_HEADERS}-of-error", headers)]
    context.set_trailing_metadata(tuple(trailing))
    code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
    await context.abort(code, error.message)


async def start(context: Any, definition: Any) -> None:
    """Sends the headers, and sets the trailers."""
    context.set_trailing_metadata(((_HEADERS, written(definition.response_trailers)),))


async def unary(requests: list[Any], context: Any) -> Any:
    definition = (
        requests[0].response_definition if requests else service_pb2.UnaryResponseDefinition()
    )
    headers = written(definition.response_headers)
    await start(context, definition)
    info = request_info(context, requests)
    await asyncio.sleep(definition.response_delay_ms / 1000)
    if definition.HasField("error"):
        await fail(context, definition.error, info, headers)
    await context.send_initial_metadata(((_HEADERS, headers),))
    return service_pb2.ConformancePayload(data=definition.response_data, request_info=info)


class Service(service_grpc.ConformanceServiceServicer):  # type: ignore[misc]
    """Answers as each request says."""

    async def Unary(self, request: Any, context: Any) -> Any:
        return service_pb2.UnaryResponse(payload=await unary([request], context))

    async def IdempotentUnary(self, request: Any, context: Any) -> Any:
        return service_pb2.IdempotentUnaryResponse(payload=await unary([request], context))

    async def ClientStream(self, requests: AsyncIterator[Any], context: Any) -> Any:
        received = [request async for request in requests]
        return service_pb2.ClientStreamResponse(payload=await unary(received, context))

    async def ServerStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        definition = request.response_definition
        await start(context, definition)
        headers = written(definition.response_headers)
        info = request_info(context, [request])
        if definition.response_data or not definition.HasField("error"):
            await context.send_initial_metadata(((_HEADERS, headers),))
        for number, data in enumerate(definition.response_data):
            await asyncio.sleep(definition.response_delay_ms / 1000)
            payload = service_pb2.ConformancePayload(
                data=data, request_info=None if number else info
            )
            yield service_pb2.ServerStreamResponse(payload=payload)
        if definition.HasField("error"):
            none_sent = not definition.response_data
            await fail(context, definition.error, info if none_sent else None, headers)

    async def BidiStream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        definition = service_pb2.StreamResponseDefinition()
        pending: list[Any] = []
        headers, received, sent, full_duplex = "[]", 0, 0, False

        def response() -> Any:
            payload = service_pb2.ConformancePayload(data=definition.response_data[sent])
            if not sent:
                payload.request_info.CopyFrom(request_info(context, pending))
            elif full_duplex:
                payload.request_info.CopyFrom(request_info(context, pending, whole=False))
            return service_pb2.BidiStreamResponse(payload=payload)

        async for request in requests:
            pending.append(request)
            received += 1
            if received == 1:
                definition, full_duplex = request.response_definition, request.full_duplex
                headers = written(definition.response_headers)
                await start(context, definition)
                if full_duplex and definition.response_data:
                    await context.send_initial_metadata(((_HEADERS, headers),))
            if full_duplex:
                if sent >= len(definition.response_data):
                    break
                await asyncio.sleep(definition.response_delay_ms / 1000)
                yield response()
                sent += 1
                pending = []
        if not full_duplex and (definition.response_data or not definition.HasField("error")):
            await context.send_initial_metadata(((_HEADERS, headers),))
        while sent < len(definition.response_data):
            await asyncio.sleep(definition.response_delay_ms / 1000)
            yield response()
            sent += 1
        if definition.HasField("error"):
            info = None if sent else request_info(context, pending)
            await fail(context, definition.error, info, headers)


def wanted() -> Any:
    (size,) = struct.unpack(">I", sys.stdin.buffer.read(4))
    return server_pb2.ServerCompatRequest.FromString(sys.stdin.buffer.read(size))


async def main() -> None:
    """Serves until the program is stopped."""
    request = await asyncio.to_thread(wanted)
    backend = grpc.aio.server()
    service_grpc.add_ConformanceServiceServicer_to_server(Service(), backend)
    port = backend.add_insecure_port("127.0.0.1:0")
    await backend.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        application = ConnectApplication(
            [service_pb2.DESCRIPTOR.services_by_name["ConformanceService"]],
            channel,
            JsonMessages(KeylessBodies(channel)),
            max_message_bytes=request.message_receive_limit or 16 << 20,
            forwarding=AllHeaders(),
        )
        server = uvicorn.Server(
            uvicorn.Config(application, port=0, lifespan="off", log_level="error", access_log=False)
        )
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        own_port = server.servers[0].sockets[0].getsockname()[1]
        answer = server_pb2.ServerCompatResponse(host="127.0.0.1", port=own_port)
        data = answer.SerializeToString()
        sys.stdout.buffer.write(struct.pack(">I", len(data)) + data)
        sys.stdout.buffer.flush()
        await serving
        await backend.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
