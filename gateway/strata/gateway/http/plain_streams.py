"""Streamed responses for clients that support only plain HTTP, such as curl.

The Connect protocol frames the messages of a stream. Where the body of a request is plain JSON,
the responses are lines of JSON, or server-sent events if the client accepts those.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import grpc.aio
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from strata.gateway.http.calls import BodyTooLargeError, metadata_of, read_body
from strata.gateway.http.errors import connect_error, error_body, http_status_of
from strata.gateway.http.json_messages import JsonMessages, Metadata
from strata.protocol.shapes import ClientMethod, RpcShape

EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/x-ndjson"


class PlainStream:
    """Calls one method that streams its responses, for a request of plain JSON.

    Args:
        descriptor: The method.
        channel: Calls it.
        messages: Converts JSON.
        max_body_bytes: Larger requests are refused.
    """

    def __init__(
        self,
        descriptor: MethodDescriptor,
        channel: grpc.aio.Channel,
        messages: JsonMessages,
        *,
        max_body_bytes: int,
    ) -> None:
        service: ServiceDescriptor = descriptor.containing_service
        path = f"/{service.full_name}/{descriptor.name}"
        self._open = ClientMethod(RpcShape(False, True), path).open_on(channel)
        self._json = messages
        self._max_body_bytes = max_body_bytes
        self._input = GetMessageClass(descriptor.input_type)
        self._output = GetMessageClass(descriptor.output_type)

    async def respond(self, request: Request) -> Response:
        """Returns the response: an error if the call fails before its first message."""
        metadata = metadata_of(request.headers)
        try:
            body = await read_body(request, self._max_body_bytes)
            call = self._open(
                await self._json.to_binary(body, self._input, metadata), metadata=metadata
            )
            messages = self._messages(call, metadata)
            first = await anext(messages, None)
        except BodyTooLargeError as error:
            refusal = ConnectError(Code.RESOURCE_EXHAUSTED, str(error))
            return JSONResponse(
                error_body(refusal), status_code=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        except grpc.aio.AioRpcError as error:
            return _refused(connect_error(error))
        except ConnectError as error:
            return _refused(error)
        events = EVENT_STREAM in request.headers.get("accept", "")
        return StreamingResponse(
            _lines(first, messages, events=events),
            media_type=EVENT_STREAM if events else JSON_LINES,
            # Buffering proxies would delay the parts of the response.
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _messages(self, call: Any, metadata: Metadata) -> AsyncGenerator[bytes]:
        try:
            async for response in call:
                yield await self._json.to_json(response, self._output, metadata)
        except grpc.aio.AioRpcError as error:
            raise connect_error(error) from error
        finally:
            # If the client has left, the call is over.
            call.cancel()


def _refused(error: ConnectError) -> Response:
    return JSONResponse(error_body(error), status_code=http_status_of(error.code))


async def _lines(
    first: bytes | None, messages: AsyncGenerator[bytes], *, events: bool
) -> AsyncIterator[bytes]:
    start, end = (b"data: ", b"\n\n") if events else (b"", b"\n")
    if first is None:
        return
    try:
        async with aclosing(messages):
            yield start + first + end
            async for message in messages:
                yield start + message + end
    except ConnectError as error:
        # The status has been sent. No response of a method has a field of this name.
        failure = json.dumps({"error": error_body(error)}, ensure_ascii=False).encode()
        yield (b"event: error\n" if events else b"") + start + failure + end
