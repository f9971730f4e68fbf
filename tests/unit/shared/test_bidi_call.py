"""Bidirectional streams in which the server sends requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import grpc.aio
import pytest

from strata.shared.bidi_call import call_and_answer


class Stream:
    """The client side of a stream whose responses a test supplies."""

    def __init__(self) -> None:
        self.pending: asyncio.Queue[Any] = asyncio.Queue()
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False
        self._sending: asyncio.Task[None] | None = None

    def __call__(self, requests: AsyncIterator[Any]) -> Stream:
        async def send() -> None:
            async for request in requests:
                self.heard.put_nowait(request)

        self._sending = asyncio.create_task(send())
        return self

    async def read(self) -> Any:
        message = await self.pending.get()
        if isinstance(message, Exception):
            raise message
        return message

    def cancel(self) -> None:
        self.cancelled = True
        assert self._sending is not None
        self._sending.cancel()


class Answers:
    """Answers ``ask ...`` with a text; a request with ``slow`` waits until it is cancelled."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.left: list[str] = []

    def __call__(self, question: str) -> Coroutine[Any, Any, str] | None:
        return self._answer(question) if question.startswith("ask") else None

    async def _answer(self, question: str) -> str:
        self.began.append(question)
        if "bad" in question:
            raise ValueError(question)
        if "slow" in question:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.left.append(question)
                raise
        return question.replace("ask", "answer")


@pytest.fixture
def stream() -> Stream:
    return Stream()


async def responses_of(stream: Stream, answers: Answers, *messages: Any) -> list[str]:
    for message in (*messages, grpc.aio.EOF):
        stream.pending.put_nowait(message)
    responses = call_and_answer(stream, "first", answers, lambda word: word == "over")
    async with aclosing(responses):
        return [response async for response in responses]


async def test_nested_requests_are_answered_and_other_responses_yielded(stream: Stream) -> None:
    answers = Answers()
    responses = call_and_answer(stream, "first", answers, lambda word: word == "over")
    async with aclosing(responses):
        stream.pending.put_nowait("news")
        assert await anext(responses) == "news"
        assert await stream.heard.get() == "first"
        stream.pending.put_nowait("ask 1")
        following = asyncio.ensure_future(anext(responses))
        assert await stream.heard.get() == "answer 1"
        stream.pending.put_nowait("over")
        assert await following == "over"
    assert stream.cancelled


async def test_an_answer_that_is_no_longer_needed_is_cancelled(stream: Stream) -> None:
    answers = Answers()
    responses = call_and_answer(stream, "first", answers, lambda word: word == "over")
    async with aclosing(responses):
        following = asyncio.ensure_future(anext(responses))
        for number, word in enumerate(("ask slow 1", "ask slow 2"), 1):
            stream.pending.put_nowait(word)
            while len(answers.began) < number:
                await asyncio.sleep(0)
        assert answers.left == ["ask slow 1"]
        # Other news do not affect it.
        stream.pending.put_nowait("news")
        assert await following == "news"
        assert answers.left == ["ask slow 1"]
        stream.pending.put_nowait("over")
        assert await anext(responses) == "over"
        assert answers.left == ["ask slow 1", "ask slow 2"]
        following = asyncio.ensure_future(anext(responses))
        stream.pending.put_nowait("ask slow 3")
        while len(answers.began) < 3:
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert answers.left[2:] == ["ask slow 3"]
    assert stream.cancelled


@pytest.mark.parametrize("last", ["ask bad", ValueError("ask bad")])
async def test_failures_end_the_stream(stream: Stream, last: object) -> None:
    stream.pending.put_nowait(last)
    with pytest.raises(ValueError, match="ask bad"):
        await anext(call_and_answer(stream, "first", Answers(), lambda _: False))
    assert stream.cancelled


async def test_the_generator_ends_with_the_stream(stream: Stream) -> None:
    assert await responses_of(stream, Answers(), "a", "b") == ["a", "b"]
    assert stream.cancelled
