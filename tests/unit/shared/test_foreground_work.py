"""Steps of background work wait for foreground work, but never for ever."""

from __future__ import annotations

import asyncio

from strata.shared.foreground_work import ForegroundWork

LONGEST_S = 0.25


class MovedClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def foreground_work(clock: MovedClock, short_s: float = 60.0) -> ForegroundWork:
    # Without a pause, the wait of a step lasts one round of the event loop each time.
    return ForegroundWork(0.0, LONGEST_S, short_s=short_s, now=clock)


async def begun(work: ForegroundWork) -> asyncio.Task[None]:
    """Starts a step of background work, and lets it wait if it has to."""
    step = asyncio.create_task(work.give_way())
    await let_run()
    return step


async def let_run() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_background_step_begins_at_once_while_nothing_else_works() -> None:
    assert (await begun(foreground_work(MovedClock()))).done()


async def test_a_background_step_waits_for_all_foreground_work() -> None:
    work = foreground_work(MovedClock())
    with work:
        with work:
            step = await begun(work)
            assert work.is_active
        await let_run()
        assert not step.done()
    await step
    assert not work.is_active


async def test_background_work_progresses_beside_foreground_work_that_never_ends() -> None:
    clock = MovedClock()
    work = foreground_work(clock)
    with work:
        for _ in range(3):
            step = await begun(work)
            assert not step.done()
            clock.now += LONGEST_S
            await step


async def test_work_that_takes_long_waits_for_something_else_and_does_not_count() -> None:
    clock = MovedClock()
    work = foreground_work(clock, short_s=0.1)
    with work:
        step = await begun(work)
        assert not step.done()
        clock.now += 0.11
        await step
        with work:
            assert work.is_active


async def test_background_work_waits_for_the_next_call_of_the_same_turn() -> None:
    clock = MovedClock()
    work = ForegroundWork(0.03, LONGEST_S, now=clock)
    with work:
        pass
    assert work.is_active
    clock.now += 0.03
    assert not work.is_active
