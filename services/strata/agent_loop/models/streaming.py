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
from strata.shared.redaction import Redactor
from strata.shared.settings import MIB

T = TypeVar("T")

MAX_REPLY_BYTES = MIB
"""UTF-8 bytes of the largest reply; a quarter of what gRPC clients accept by default."""
_CALL_BYTES = 64
_HURRIED_ATTEMPTS = 2
_HURRIED_DELAY_S = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast a call is repeated that failed before its first event.

    Attributes:
        attempts: Requests in all.
        first_delay: Seconds before the second request; doubles each time, less up to a quarter.
        max_delay: Upper bound of a delay in seconds. A provider that asks for a longer wait is
            not waited for: the error goes up with its `retry_after`.
        repeat_timeouts: Whether a request that timed out is repeated.
    """

    attempts: int = 3
    first_delay: float = 0.5
    max_delay: float = 20.0
    repeat_timeouts: bool = True

    def hurried(self) -> RetryPolicy:
        """Returns the policy of a model behind which another one waits to answer."""
        return RetryPolicy(
            min(self.attempts, _HURRIED_ATTEMPTS),
            self.first_delay,
            min(self.max_delay, _HURRIED_DELAY_S),
            repeat_timeouts=False,
        )

    def delay(self, attempt: int, error: ModelError) -> float | None:
        """Seconds to wait after the failed request number `attempt` (from 1); None to give up."""
        timed_out = error.kind is ModelErrorKind.TIMEOUT and self.repeat_timeouts
        passing = error.retryable or timed_out
        if attempt >= self.attempts or not passing:
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


async def redacting(
    events: AsyncGenerator[ModelEvent, None], redactor: Redactor
) -> AsyncGenerator[ModelEvent, None]:
    """Streams events; an error goes up without the keys that the provider repeated in it.

    Raises:
        ModelError: As `events` does. It has no cause: that would hold the provider's own text.
    """
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except ModelError as error:
        raise error.redacted(redactor) from None


class ReplySize:
    """Bounds the size of one reply: text, reasoning and tool calls together.

    Attributes:
        full: The limit is reached. What a provider sends from then on is not read, and the
            reply ends as one that reached the limit of output tokens.
    """

    def __init__(self, max_bytes: int = MAX_REPLY_BYTES) -> None:
        self.full = False
        self._left = max_bytes

    def take(self, text: str) -> str:
        """Returns as much of a piece of the reply as fits."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if size <= self._left:
            self._left -= size
            return text
        kept = text.encode("utf-8", "replace")[: self._left].decode("utf-8", "ignore")
        self.full, self._left = True, 0
        return kept

    def take_call(self) -> None:
        """Counts the beginning of a tool call, which takes memory even if it is empty."""
        self.take(" " * _CALL_BYTES)


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
