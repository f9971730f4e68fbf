"""The event loop of the client without ``await``, after it is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from strata.client.calls.on_thread import LoopThread, on_calling_thread


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


def test_functions_run_on_the_waiting_thread_and_may_use_the_loop() -> None:
    thread = LoopThread()
    callers = []

    def read() -> int:
        callers.append(threading.current_thread())
        return thread.run(double(2))

    async def doubled_twice() -> int:
        return 2 * await on_calling_thread(read)

    assert thread.run(doubled_twice()) == 8
    assert callers == [threading.current_thread()]
    thread.close()


def test_an_error_of_a_function_on_the_waiting_thread_reaches_the_coroutine() -> None:
    thread = LoopThread()
    caught = []

    def fail() -> None:
        raise ValueError("unreadable")

    async def catching() -> None:
        try:
            await on_calling_thread(fail)
        except ValueError as error:
            caught.append(str(error))
            raise

    with pytest.raises(ValueError, match="unreadable"):
        thread.run(catching())
    assert caught == ["unreadable"]
    thread.close()


def test_an_interruption_on_the_waiting_thread_cancels_the_coroutine() -> None:
    thread = LoopThread()
    ended = threading.Event()

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def interrupted() -> None:
        try:
            await on_calling_thread(interrupt)
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        thread.run(interrupted())
    assert ended.wait(10)
    thread.close()


def test_code_on_the_loop_is_refused_to_wait_for_the_loop() -> None:
    thread = LoopThread()

    async def waiting() -> int:
        return thread.run(double(2))

    with pytest.raises(RuntimeError, match="plain function"):
        thread.run(waiting())
    thread.close()


def test_an_interrupted_iteration_is_closed_after_its_step_has_ended() -> None:
    thread = LoopThread()
    ended = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def interrupted() -> AsyncGenerator[int, None]:
        try:
            await on_calling_thread(interrupt)
            yield 1
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        next(thread.iterate(interrupted()))
    assert ended == [True]
    thread.close()
