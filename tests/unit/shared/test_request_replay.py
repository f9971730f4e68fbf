"""Requests of one call that several attempts read, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polling import settle
from strata.shared.interceptors.replay import LIMIT_BYTES, RequestReplay
from strata.shared.request_stream import RequestStream


async def take(requests: AsyncIterator[bytes], count: int) -> list[bytes]:
    return [await anext(requests) for _ in range(count)]


async def take_all(requests: AsyncIterator[bytes]) -> list[bytes]:
    return [request async for request in requests]


async def delayed(requests: list[bytes]) -> AsyncIterator[bytes]:
    for request in requests:
        await asyncio.sleep(0)
        yield request


def source(kind: str, requests: list[bytes]) -> Any:
    return delayed(requests) if kind == "asynchronous" else iter(requests)


@given(
    kind=st.sampled_from(["asynchronous", "synchronous"]),
    requests=st.lists(st.binary(max_size=8), max_size=8),
    ended=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 6)), max_size=4),
)
def test_every_attempt_gets_all_requests_in_order(
    kind: str, requests: list[bytes], ended: list[tuple[int, int]]
) -> None:
    async def run() -> None:
        replay = RequestReplay(source(kind, requests), None)
        tasks: list[asyncio.Task[list[bytes]]] = []
        for count, turns_of_the_loop in ended:
            # The attempt ends while its task reads on, or waits.
            tasks.append(asyncio.create_task(take(replay.requests(), count)))
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
        assert await take_all(replay.requests()) == requests
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def test_ended_attempt_that_waits_fetches_the_request_for_the_next_attempt() -> None:
    stream: RequestStream[bytes] = RequestStream(b"1")
    replay = RequestReplay(stream, None)
    ended = asyncio.create_task(take_all(replay.requests()))
    await settle()
    present = asyncio.create_task(take_all(replay.requests()))
    await settle()
    stream.add(b"2")
    await settle()
    stream.add(b"3")
    stream.close()
    assert await present == [b"1", b"2", b"3"]
    assert await ended == [b"1"]


async def test_several_ended_attempts_wait_for_the_one_that_fetches() -> None:
    stream: RequestStream[bytes] = RequestStream()
    replay = RequestReplay(stream, None)
    attempts = []
    for _ in range(4):
        attempts.append(asyncio.create_task(take_all(replay.requests())))
        await settle()
    stream.add(b"1")
    stream.close()
    assert await asyncio.gather(*attempts) == [[], [], [], [b"1"]]


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
async def test_requests_beyond_the_limit_are_sent_once_and_not_kept(kind: str) -> None:
    requests = [bytes([number]) * (LIMIT_BYTES // 4) for number in range(6)]
    replay = RequestReplay(source(kind, requests), None)
    attempt = replay.requests()
    assert await take(attempt, 4) == requests[:4]
    assert replay.replayable
    assert await take(attempt, 1) == requests[4:5]
    assert not replay.replayable
    with pytest.raises(RuntimeError):
        replay.requests()
    assert await take_all(attempt) == requests[5:]


async def test_request_beyond_the_limit_does_not_displace_those_that_are_being_replayed() -> None:
    stream: RequestStream[bytes] = RequestStream(b"1", b"2")
    replay = RequestReplay(stream, None, limit_bytes=3)
    ended = asyncio.create_task(take_all(replay.requests()))
    await settle()
    present = replay.requests()
    assert await take(present, 1) == [b"1"]
    stream.add(b"too much")
    stream.close()
    await settle()
    assert await take_all(present) == [b"2", b"too much"]
    assert await ended == [b"1", b"2"]


async def test_drop_frees_only_the_space_that_was_taken() -> None:
    replay = RequestReplay(iter([b"1", b"2"]), None)
    await take_all(replay.requests())
    attempt = replay.requests()
    await take(attempt, 1)
    replay.drop()
    assert not replay.replayable
    assert await take_all(attempt) == [b"2"]


async def test_close_ends_the_tasks_of_all_attempts() -> None:
    replay = RequestReplay(RequestStream[bytes](), None)
    tasks = []
    for _ in range(3):
        tasks.append(asyncio.create_task(take_all(replay.requests())))
        await settle()
    replay.close()
    await asyncio.wait(tasks, timeout=10)
    assert all(task.done() for task in tasks)
    with pytest.raises(RuntimeError):
        replay.requests()


async def test_request_is_replayed_as_it_was_when_it_was_sent() -> None:
    async def reused() -> AsyncIterator[bytearray]:
        request = bytearray(b"1")
        yield request
        request[:] = b"2"
        yield request

    replay = RequestReplay(reused(), bytes)
    assert await take_all(replay.requests()) == [b"1", b"2"]
    assert await take_all(replay.requests()) == [b"1", b"2"]


async def test_error_of_the_iterator_reaches_the_attempt_that_waits() -> None:
    go = asyncio.Event()

    async def broken() -> AsyncIterator[bytes]:
        yield b"1"
        await go.wait()
        raise LookupError("nothing there")

    replay = RequestReplay(broken(), None)
    ended = asyncio.create_task(take_all(replay.requests()))
    await settle()
    present = asyncio.create_task(take_all(replay.requests()))
    await settle()
    go.set()
    with pytest.raises(LookupError):
        await present
    assert await ended == [b"1"]


async def test_iterator_is_checked_at_once() -> None:
    with pytest.raises(TypeError):
        RequestReplay(7, None)  # type: ignore[arg-type]
