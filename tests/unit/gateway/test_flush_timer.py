"""The timer of a run's writes, on the event loop of the services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from strata.gateway.runs.events.flush_timer import FlushTimer
from strata.shared.event_loop import loop_factory


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())


# A delay that is over when the loop gets it: always with 0, and with 2 ms on a busy machine.
@pytest.mark.parametrize("first_delay", [0.0, 0.0001, 0.002])
@pytest.mark.parametrize("second_delay", [0.0, 0.002, 60.0])
def test_two_schedules_make_one_flush_at_the_earlier_time(
    first_delay: float, second_delay: float
) -> None:
    async def work() -> None:
        flushed: asyncio.Queue[None] = asyncio.Queue()

        async def flush() -> None:
            flushed.put_nowait(None)

        timer = FlushTimer()
        timer.schedule(first_delay, flush)
        timer.schedule(second_delay, flush)
        await flushed.get()
        await asyncio.sleep(0.01)
        assert flushed.empty()
        timer.schedule(60.0, flush)
        timer.schedule(0.0, flush)
        await flushed.get()

    _run(work)


def test_a_stopped_timer_makes_no_flush() -> None:
    async def work() -> None:
        async def flush() -> None:
            raise AssertionError("flushed")

        for delay in (0.0, 0.001):
            timer = FlushTimer()
            timer.schedule(delay, flush)
            timer.stop()
        await asyncio.sleep(0.01)

    _run(work)
