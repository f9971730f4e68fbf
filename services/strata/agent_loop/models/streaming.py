"""Time limits and repetition of a streamed call, the same for every provider."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from strata.agent_loop.models.domain import ModelEvent, Timeouts
from strata.agent_loop.models.errors import ModelError, ModelErrorKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a failed call is repeated.

    Attributes:
        attempts: Requests in all.
        first_delay: Seconds before the second request; doubles each time, less up to a quarter.
        max_delay: Upper bound of a delay in seconds. A provider that asks for a longer wait is
            not waited for: the error goes up with its `retry_after`.
    """

    attempts: int = 3
    first_delay: float = 0.5
    max_delay: float = 20.0

    def delay(self, attempt: int, error: ModelError) -> float | None:
        """Seconds to wait after the failed request number `attempt` (from 1); None to give up."""
        if attempt >= self.attempts or not error.retryable:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.max_delay else None
        backoff = min(self.first_delay * 2.0 ** (attempt - 1), self.max_delay)
        return backoff * random.uniform(0.75, 1.0)  # noqa: S311  spreads load, hides nothing


async def retrying(
    attempt: Callable[[], AsyncGenerator[ModelEvent, None]],
    policy: RetryPolicy,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[ModelEvent, None]:
    """Streams `attempt()`, repeating it while it fails before its first event.

    After the first event the error goes up: the caller has shown something already and alone
    knows whether to start over.
    """
    number = 0
    while True:
        number += 1
        started = False
        try:
            async with aclosing(attempt()) as events:
                async for event in events:
                    started = True
                    yield event
        except ModelError as error:
            delay = None if started else policy.delay(number, error)
            if delay is None:
                raise
        else:
            return
        await sleep(delay)


class StreamLimits:
    """Watches the time of one request.

    The limit is put around each wait, never around a `yield`: a scope that spans a `yield` of an
    asynchronous generator would cancel the wrong task.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        start = asyncio.get_running_loop().time()
        self._first = start + min(timeouts.first_event, timeouts.total)
        self._end = start + timeouts.total
        self._timeouts = timeouts
        self._started = False

    def mark_started(self) -> None:
        """Notes that the first event has come."""
        self._started = True

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Awaits within the limit that is in force.

        Raises:
            ModelError: TIMEOUT, when the limit passes.
        """
        try:
            async with asyncio.timeout_at(self._end if self._started else self._first):
                return await awaitable
        except TimeoutError as error:
            raise ModelError(ModelErrorKind.TIMEOUT, self._message()) from error

    def _message(self) -> str:
        if self._started:
            return f"The model did not finish its reply within {self._timeouts.total:g} s."
        return f"The model sent nothing within {self._timeouts.first_event:g} s."
