"""Chat models with streamed replies: attempts, time limits and retries, for all providers."""

from __future__ import annotations

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    ReplyPart,
    TextDelta,
    Timeouts,
    ToolCall,
    UsageEvent,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.stream_pauses import StreamPauses
from strata.shared.redaction import Redactor
from strata.shared.settings import MIB
from strata.shared.usage import Usage

T = TypeVar("T")
EventT = TypeVar("EventT")

MAX_REPLY_BYTES = MIB
"""Maximum UTF-8 bytes of a reply: a quarter of the default message limit of gRPC clients."""
_CALL_BYTES = 64
# Events that have arrived together are read without a pause. After this many, about two
# milliseconds of work until they reach the client, other tasks run.
_EVENTS_AT_ONCE = 32
_PAUSES = StreamPauses()
# A reply that takes longer is written by a slow model, one piece after another.
_FAST_REPLY_S = 0.25
# An event that was not there at once was waited for.
_AT_ONCE_S = 0.001
_ATTEMPTS_WITH_FALLBACK = 2
_MAX_DELAY_WITH_FALLBACK_S = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast calls that failed before their first event are retried.

    Attributes:
        attempts: Maximum number of requests, including the first.
        first_delay: Seconds before the second request; doubles each time, with jitter down to 75%.
        max_delay: Maximum seconds of a delay. If the provider requests a longer wait, the error is
            raised with its `retry_after`.
        repeat_timeouts: Whether requests that timed out are retried.
        on_retry: Called with the error of each request that is retried.
    """

    attempts: int = 3
    first_delay: float = 0.5
    max_delay: float = 20.0
    repeat_timeouts: bool = True
    on_retry: Callable[[ModelError], None] | None = None

    def for_fallback(self) -> RetryPolicy:
        """Returns the policy for a model that has a fallback model: fewer and faster retries."""
        return replace(
            self,
            attempts=min(self.attempts, _ATTEMPTS_WITH_FALLBACK),
            max_delay=min(self.max_delay, _MAX_DELAY_WITH_FALLBACK_S),
            repeat_timeouts=False,
        )

    def delay(self, attempt: int, error: ModelError) -> float | None:
        """Returns the seconds to wait after failed request `attempt` (from 1); None to stop."""
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
    """Streams `attempt()`, and retries it while it fails before its first event.

    After the first event errors are raised: the caller has shown something already and must
    decide whether to start over.
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
            if policy.on_retry is not None:
                policy.on_retry(error)
        else:
            return
        await sleep(delay)


async def redacting(
    events: AsyncGenerator[ModelEvent, None], redactor: Redactor
) -> AsyncGenerator[ModelEvent, None]:
    """Streams events, and redacts keys in errors.

    Raises:
        ModelError: As `events` does, but without a cause, whose text could contain the key.
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
        full: The limit is reached: the rest of the stream is not read, and the
            reply ends as if it had reached the limit of output tokens.
    """

    def __init__(self, max_bytes: int = MAX_REPLY_BYTES) -> None:
        self.full = False
        self._remaining_bytes = max_bytes

    def take(self, text: str) -> str:
        """Returns the part of a piece that fits into the limit."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if size <= self._remaining_bytes:
            self._remaining_bytes -= size
            return text
        allowed = text.encode("utf-8", "replace")[: self._remaining_bytes].decode("utf-8", "ignore")
        self.full, self._remaining_bytes = True, 0
        return allowed

    def take_call(self) -> None:
        """Counts a new tool call, which takes memory even if it is empty."""
        self.take(" " * _CALL_BYTES)


class StreamLimits:
    """Enforces the time limits of one request.

    The limit is applied to each wait, never around a `yield`: a timeout that spans a `yield` of an
    asynchronous generator would cancel the wrong task. One timer serves all waits of a request,
    since a reply can have thousands of events.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._loop = asyncio.get_running_loop()
        start = self._loop.time()
        self._end = start + timeouts.total
        self._timeouts = timeouts
        self._started = self._expired = self._cancelled = False
        self._waiting: asyncio.Task[Any] | None = None
        first = start + min(timeouts.first_event, timeouts.total)
        self._timer = self._loop.call_at(first, self._expire)

    def mark_started(self) -> None:
        """Switches to the total limit, since the first event has arrived."""
        if not self._started:
            self._started, self._expired = True, False
            self._timer.cancel()
            self._timer = self._loop.call_at(self._end, self._expire)

    def close(self) -> None:
        """Stops the timer."""
        self._timer.cancel()

    def _expire(self) -> None:
        self._expired = True
        if self._waiting is not None:
            self._cancelled = True
            self._waiting.cancel()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Awaits within the current limit.

        Raises:
            ModelError: TIMEOUT, if the limit passes.
        """
        task = asyncio.current_task()
        assert task is not None
        earlier = task.cancelling()
        self._waiting = task
        if self._expired:
            self._loop.call_soon(self._expire)
        try:
            return await awaitable
        except asyncio.CancelledError as error:
            # As in `asyncio.timeout`: other code may have cancelled the task as well.
            if self._cancelled and self._take_back(task) <= earlier:
                raise ModelError(ModelErrorKind.TIMEOUT, self._message()) from error
            raise
        finally:
            self._waiting = None
            if self._cancelled:
                self._take_back(task)

    def _take_back(self, task: asyncio.Task[Any]) -> int:
        """Undoes the cancellation by this timer; returns how many other cancellations remain."""
        self._cancelled = False
        return task.uncancel()

    def _message(self) -> str:
        if self._started:
            return f"The model did not finish its reply within {self._timeouts.total:g} s."
        return f"The model sent nothing within {self._timeouts.first_event:g} s."


class EventStream(Protocol):
    """The events of a reply, as the SDK of a provider returns them."""

    async def __anext__(self) -> Any:
        """Returns the next event."""
        ...

    async def close(self) -> None:
        """Closes the connection of the reply."""
        ...


class ReplyBuilder(ABC, Generic[EventT]):
    """Assembles a reply from its events.

    Pieces are joined only at the end, so that the time is linear in the length of the reply.

    Attributes:
        model: The model that the server named; empty if it named none.
        size: Bounds the size of the reply.
        ended: Whether the reply is complete, so that the rest of the stream is not read.
    """

    def __init__(self) -> None:
        self.model = ""
        self.size = ReplySize()
        self.ended = False

    @abstractmethod
    def take(self, event: EventT) -> list[ModelEvent]:
        """Adds an event; returns the events for the caller.

        Raises:
            ModelError: The event is an error.
        """

    @abstractmethod
    def content(self) -> tuple[ReplyPart, ...]:
        """Reasoning and text, in order."""

    @abstractmethod
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order."""

    @abstractmethod
    def everything(self) -> str:
        """All text of the reply, to estimate its tokens."""

    @abstractmethod
    def finish_reason(self) -> FinishReason:
        """Why the model stopped.

        Raises:
            ModelError: CUT_OFF if the stream has no proper end, REFUSED for a refusal.
        """

    @abstractmethod
    def usage(self) -> Usage | None:
        """The tokens that the server reported; None if it reported none."""


def _joined(pieces: list[str]) -> TextDelta:
    """Returns the text of pieces, and removes them from the list."""
    text = pieces[0] if len(pieces) == 1 else "".join(pieces)
    pieces.clear()
    return TextDelta(text)


class _ReadingPace:
    """The pauses in which a reply is not read.

    After many events that were read without a wait, other tasks run. If no processor is idle, the
    reply of a slow model, whose pieces arrive one by one, is read in steps of several pieces: each
    piece costs more than its text. Its first pieces, and those of fast models, are read at once.

    Attributes:
        must_pause: Whether a pause is due, even if further events have arrived.
    """

    def __init__(self, pauses: StreamPauses) -> None:
        self.must_pause = False
        self._pauses = pauses
        # Events since the last pause.
        self._read = 0
        self._slow_from = math.inf
        self._asked = self._pauses.now()
        self._waited = self._slow = False

    def note_event(self) -> None:
        """Notes that an event was read."""
        now = self._pauses.now()
        self._slow_from = min(self._slow_from, now + _FAST_REPLY_S)
        if now > self._slow_from and now - self._asked > _AT_ONCE_S:
            self._waited = self._slow = True
        self._asked = now
        self._read += 1
        self.must_pause = self._read >= _EVENTS_AT_ONCE

    async def pause(self, *, all_read: bool) -> None:
        """Pauses if a pause is due, or if the events arrive one by one.

        Args:
            all_read: Whether it is known that no further event has arrived.
        """
        one_by_one = self._waited or (self._slow and all_read)
        self._waited = False
        if one_by_one and await self._pauses.wait_for_more():
            self._read = 0
        elif self.must_pause:
            self._read, self._slow = 0, False
            await self._pauses.pause()
        self._asked = self._pauses.now()


class StreamedModel(ABC, Generic[EventT]):
    """One model of one endpoint, whose replies are streamed. Implements `ChatModel`.

    Args:
        settings: The model and its settings.
        retry: When a failed request is repeated.
        redactor: Removes keys from errors.
        pauses: The pauses in which other tasks run.
    """

    def __init__(
        self,
        settings: ModelSettings,
        retry: RetryPolicy,
        redactor: Redactor,
        pauses: StreamPauses = _PAUSES,
    ) -> None:
        self._settings = settings
        self._retry = retry
        self._redactor = redactor
        self._pauses = pauses

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `ChatModel.stream`."""
        attempts = retrying(lambda: self._attempt(request), self._retry)
        return redacting(attempts, self._redactor)

    async def _attempt(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        limits = StreamLimits(self._settings.timeouts)
        raw = await self._opened(request, limits)
        reply = self._new_reply()
        pace = _ReadingPace(self._pauses)
        # Text whose pieces have arrived together is passed on as one piece.
        text: list[str] = []
        try:
            while (event := await self._next(raw, limits)) is not None:
                limits.mark_started()
                pace.note_event()
                for model_event in reply.take(event):
                    if type(model_event) is TextDelta:
                        text.append(model_event.text)
                        continue
                    if text:
                        yield _joined(text)
                    yield model_event
                has_arrived = self._has_arrived(raw)
                may_pause = pace.must_pause or not has_arrived
                if text and may_pause:
                    yield _joined(text)
                if reply.size.full or reply.ended:
                    break
                if may_pause:
                    await pace.pause(all_read=has_arrived is False)
            # Sent before the stream is closed, because closing waits for the end of the response.
            if text:
                yield _joined(text)
        except ModelError:
            if text:
                yield _joined(text)
            raise
        finally:
            limits.close()
            await raw.close()
        for last in self._ending(reply, request):
            yield last

    async def _opened(self, request: ModelRequest, limits: StreamLimits) -> EventStream:
        """Sends a request; closes the limits if it fails."""
        try:
            return await self._open(request, limits)
        except BaseException:
            limits.close()
            raise

    def _ending(self, reply: ReplyBuilder[EventT], request: ModelRequest) -> Iterator[ModelEvent]:
        """Yields the usage and the whole reply after the end of its stream."""
        try:
            final = self._finish(reply, request)
        except ModelError as error:
            usage = reply.usage()
            if error.kind is ModelErrorKind.REFUSED and usage is not None:
                # Providers charge for the prompt of a refused reply, and for what they wrote of it.
                yield UsageEvent(usage)
            raise
        yield UsageEvent(final.usage)
        yield final

    @abstractmethod
    async def _open(self, request: ModelRequest, limits: StreamLimits) -> EventStream:
        """Sends a request, and repeats it without the parameters that the model refused."""

    @abstractmethod
    async def _next(self, raw: EventStream, limits: StreamLimits) -> EventT | None:
        """Returns the next event of a stream; None at its end.

        Raises:
            ModelError: The stream broke off, had an error in it, or took too long.
        """

    def _has_arrived(self, _raw: EventStream) -> bool | None:
        """Returns whether the next event can be read without a wait; None if it is not known."""
        return None

    @abstractmethod
    def _new_reply(self) -> ReplyBuilder[EventT]:
        """Returns the builder of a reply."""

    @abstractmethod
    def _finish(self, reply: ReplyBuilder[EventT], request: ModelRequest) -> ModelReply:
        """Returns the reply after the end of its stream.

        Raises:
            ModelError: See `ReplyBuilder.finish_reason`.
        """
