"""Requests of one call that several attempts read, one after another."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from strata.shared.request_stream import RequestStream


async def take(stream: RequestStream[bytes], count: int) -> list[bytes]:
    requests = aiter(stream)
    return [await anext(requests) for _ in range(count)]


async def take_all(stream: RequestStream[bytes]) -> list[bytes]:
    return [request async for request in stream]


async def settle() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(
    requests=st.lists(st.binary(max_size=8), max_size=8),
    ended=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 6)), max_size=4),
)
def test_every_attempt_gets_all_requests_in_order(
    requests: list[bytes], ended: list[tuple[int, int]]
) -> None:
    async def run() -> None:
        stream: RequestStream[bytes] = RequestStream(*requests[:2])
        tasks: list[asyncio.Task[list[bytes]]] = []
        for count, turns_of_the_loop in ended:
            # The attempt ends while its task continues to read, or waits.
            tasks.append(asyncio.create_task(take(stream, count)))
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
        last = asyncio.create_task(take_all(stream))
        for request in requests[2:]:
            await asyncio.sleep(0)
            stream.add(request)
        stream.close()
        assert await last == requests
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def test_a_new_iterator_ends_the_waiting_ones() -> None:
    stream: RequestStream[bytes] = RequestStream(b"1")
    attempts = []
    for _ in range(3):
        attempts.append(asyncio.create_task(take_all(stream)))
        await settle()
    assert [attempt.done() for attempt in attempts] == [True, True, False]
    stream.add(b"2")
    await settle()
    stream.add(b"3")
    stream.close()
    assert await asyncio.gather(*attempts) == [[b"1"], [b"1"], [b"1", b"2", b"3"]]


async def test_a_closed_stream_ends_after_its_requests() -> None:
    stream: RequestStream[bytes] = RequestStream(b"1", b"2")
    stream.close()
    stream.close()
    assert await take_all(stream) == [b"1", b"2"]
    assert await take_all(stream) == [b"1", b"2"]
