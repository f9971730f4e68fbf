"""Bidirectional streaming calls in which the server sends questions and the client answers them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

import grpc.aio

from strata.protocol.stream_completion import complete_in_background
from strata.shared.request_stream import RequestStream

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
    """Makes a call, sends the answers to the server's questions and yields its other responses.

    One answer is computed at a time, in a task. The task is cancelled when its answer is no longer
    needed: at the next question, at a response that settles the question, and at the end of the
    stream. Closing the generator cancels the call.

    Args:
        method: The method of a stub, with streams in both directions.
        first: The first message of the client.
        answer: Returns the coroutine that computes the answer to a question; None for a response
            that is not a question.
        settles: Returns whether a response makes the answer in progress unnecessary.
        ends: Returns whether a response is the last of the call. The server may then end the call
            by itself.

    Raises:
        StrataError: The call failed, or the computation of an answer failed.
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
