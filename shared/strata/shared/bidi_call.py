"""Calls with streams both ways in which the server asks, and the client answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

import grpc.aio

from strata.shared.request_stream import RequestStream
from strata.shared.stream_completion import complete_in_background

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


async def call_and_answer(
    method: Callable[..., Any],
    first: RequestT,
    answer: Callable[[ResponseT], Coroutine[Any, Any, RequestT] | None],
    settles: Callable[[ResponseT], bool],
    *,
    ends: Callable[[ResponseT], bool] = lambda _: False,
) -> AsyncGenerator[ResponseT, None]:
    """Makes such a call; yields what the server tells and answers what it asks meanwhile.

    An answer that nobody waits for any more is not worked out to its end: it is cancelled by the
    next question, by what settles it, and by the end of the stream. Closing the generator
    cancels the call.

    Args:
        method: Of a stub.
        first: The first message of the client.
        answer: Works out the answer to a response; None for one that asks nothing.
        settles: Whether the question under way is over with a response.
        ends: Whether a response that asks nothing is the last one of the call, so that the
            server may end it by itself.

    Raises:
        StrataError: The call failed, or working out an answer did.
    """
    messages = RequestStream(first)
    call = method(messages)
    reading: asyncio.Task[Any] | None = None
    working: asyncio.Task[RequestT] | None = None
    ended = False
    try:
        while True:
            reading = reading or asyncio.create_task(call.read())
            await asyncio.wait(
                {reading, working} if working else {reading},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if working is not None and working.done():
                messages.add(working.result())
                working = None
            if not reading.done():
                continue
            response, reading = reading.result(), None
            if response is grpc.aio.EOF:
                return
            question = answer(response)
            if working is not None and (question is not None or settles(response)):
                await _end(working)
                working = None
            if question is not None:
                working = asyncio.create_task(question)
            else:
                ended = ends(response)
                yield response
    finally:
        if ended and reading is None:
            complete_in_background(call)
        else:
            call.cancel()
        messages.close()
        await _end(*(task for task in (reading, working) if task is not None))


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
