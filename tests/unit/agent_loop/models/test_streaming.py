"""Retries and time limits of model streams."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from strata.agent_loop.domain.model.chat import ModelEvent, TextDelta, Timeouts
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.streaming import RetryPolicy, StreamLimits, retrying


class Flaky:
    """A stream that fails a number of times, after a number of events."""

    def __init__(self, failures: int, after: int = 0) -> None:
        self.left, self.after = failures, after
        self.calls = 0
        self.closed = 0
        self.waits: list[float] = []

    async def __call__(self) -> AsyncGenerator[ModelEvent, None]:
        self.calls += 1
        try:
            for _ in range(self.after):
                yield TextDelta("x")
            if self.left:
                self.left -= 1
                raise ModelError(ModelErrorKind.UNAVAILABLE, "down")
            yield TextDelta("done")
        finally:
            self.closed += 1

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def test_the_delay_grows_with_each_retry() -> None:
    flaky = Flaky(failures=2)
    seen = [event async for event in retrying(flaky, RetryPolicy(), flaky.sleep)]
    assert seen == [TextDelta("done")]
    assert flaky.calls == flaky.closed == 3
    first, second = flaky.waits
    assert 0.375 <= first <= 0.5
    assert 0.75 <= second <= 1.0


async def test_a_request_is_not_repeated_after_the_first_event() -> None:
    flaky = Flaky(failures=1, after=1)
    with pytest.raises(ModelError):
        async for _ in retrying(flaky, RetryPolicy(), flaky.sleep):
            pass
    assert flaky.calls == 1


async def test_closing_the_stream_early_closes_the_call() -> None:
    flaky = Flaky(failures=0, after=5)
    events = retrying(flaky, RetryPolicy())
    await anext(events)
    await events.aclose()
    assert flaky.closed == 1


async def test_first_event_limit_does_not_apply_after_the_first_event() -> None:
    limits = StreamLimits(Timeouts(first_event=0.05, total=60))
    limits.mark_started()
    await limits.wait(asyncio.sleep(0.1))


async def test_cancelling_is_not_a_time_out() -> None:
    limits = StreamLimits(Timeouts())
    task = asyncio.create_task(limits.wait(asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
