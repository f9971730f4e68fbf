"""The event loop of the client without ``await``, after it is closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from strata.client.calls.on_thread import LoopThread


async def double(number: int) -> int:
    return 2 * number


async def numbers() -> AsyncGenerator[int, None]:
    yield 1
    yield 2


def test_a_call_after_closing_reports_that_the_client_is_closed() -> None:
    thread = LoopThread()
    assert thread.run(double(2)) == 4
    thread.close()
    with pytest.raises(RuntimeError, match="client is closed"):
        thread.run(double(2))


def test_an_iterator_left_open_can_be_closed_after_the_loop() -> None:
    thread = LoopThread()
    left, continued = thread.iterate(numbers()), thread.iterate(numbers())
    assert (next(left), next(continued)) == (1, 1)
    thread.close()
    with pytest.raises(RuntimeError, match="client is closed"):
        next(continued)
    # Like the garbage collector with an iterator that was not exhausted.
    left.close()  # type: ignore[attr-defined]
