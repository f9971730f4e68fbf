"""Streams of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

# Shorter than the idle times of proxies and clients.
_KEEP_ALIVE_S = 15.0


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
    """Adds comments while no events arrive, so that proxies keep the connection open."""
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
