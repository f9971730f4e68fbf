"""Answers to requests over HTTP: errors in the form of OpenAI, and streams of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import grpc.aio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from strata.gateway.http.calls import BodyTooLargeError
from strata.gateway.http.openai_api.errors import ApiError, of_call

# Shorter than the idle times of proxies and clients.
_KEEP_ALIVE_S = 15.0

Handler = Callable[[Request], Awaitable[Response]]


def answering(handle: Handler) -> Handler:
    """Returns a handler that answers errors in OpenAI's form."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except grpc.aio.AioRpcError as error:
            failure = of_call(error)
        except BodyTooLargeError as error:
            failure = ApiError(str(error), status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        except ApiError as error:
            failure = error
        return JSONResponse(failure.body, status_code=failure.status, headers=failure.headers)

    return answer


def event_stream(events: AsyncIterator[bytes]) -> Response:
    """Returns a response that is a stream of server-sent events."""
    return StreamingResponse(
        _kept_alive(events),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def server_sent(body: dict[str, Any], name: str = "") -> bytes:
    """Returns an event, with a name if it has one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


async def _kept_alive(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Adds comments while an agent works without a word, so that nobody takes it for dead."""
    while True:
        waiting = asyncio.ensure_future(anext(events, None))
        try:
            while not (await asyncio.wait((waiting,), timeout=_KEEP_ALIVE_S))[0]:
                yield b": the agent is working\n\n"
            event = waiting.result()
        finally:
            waiting.cancel()
        if event is None:
            return
        yield event
