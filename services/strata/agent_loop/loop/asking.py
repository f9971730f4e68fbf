"""Asking the model for one reply: what is sent, what is relayed, when it is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from strata.agent_loop.domain.events import (
    ReasoningPiece,
    StepRestarted,
    TextPiece,
    ToolCallPiece,
    WindowCompacted,
)
from strata.agent_loop.domain.messages import Window
from strata.agent_loop.loop.failures import (
    cut_before_text,
    empty_reply,
    from_model_error,
    system_prompt_too_large,
)
from strata.agent_loop.loop.gauge import Gauge
from strata.agent_loop.loop.ports import BoundModel, Compacted, EventSink
from strata.agent_loop.loop.prompt import WorkingWindow
from strata.agent_loop.loop.requests import FittedRequest, Offer, View, build_request
from strata.agent_loop.models.domain import (
    FinishReason,
    ModelEvent,
    ModelReply,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from strata.agent_loop.models.errors import ModelError, ModelErrorKind, naming_key
from strata.agent_loop.models.tokens import tools_bytes
from strata.shared.errors import AbortedError, Reason
from strata.shared.logs import get_logger

MAX_RESTARTS = 2
MAX_OVERFLOWS = 2
"""Context-length refusals of one step that are answered with a smaller request."""

_FIRST_DELAY = 0.5
_MAX_DELAY = 20.0
# The provider counts more tokens than we do; how many more it seldom says.
_REFUSED_SHARE = 0.7
_TOO_LONG = "The prompt was too long; older messages are summarised or left out."

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StepName:
    """The step that is under way, and the id that its assistant message will have."""

    step: int
    step_id: str
    message_id: str


class Compact(Protocol):
    """Makes room in a window; see `compaction.compactor.Compactor.compact`."""

    async def __call__(self, window: Window, view: View, room: float) -> Compacted | None:
        """Returns what was done, None if nothing could leave the window."""
        ...


class Asker:
    """Asks one agent's model.

    Attributes:
        usage: Tokens of all replies so far, those of a summarizer included.

    Args:
        bound: The model.
        gauge: How full its windows are.
        view: How messages are shown.
        sink: Where the pieces go.
        compact: Makes room in the window.
        stream_tokens: Whether the pieces are wanted.
        sleep: Waits between two requests.
    """

    def __init__(
        self,
        bound: BoundModel,
        gauge: Gauge,
        view: View,
        sink: EventSink,
        *,
        compact: Compact,
        stream_tokens: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.usage = Usage()
        self._bound = bound
        self._gauge = gauge
        self._view = view
        self._sink = sink
        self._compact = compact
        self._stream_tokens = stream_tokens
        self._sleep = sleep
        self._read = False

    async def ask(self, name: StepName, window: WorkingWindow, offer: Offer) -> ModelReply:
        """Returns the model's reply to the window, which is compacted first if it is too full.

        A stream that breaks after its first piece is begun anew, at most `MAX_RESTARTS` times;
        no tool has run by then, so nothing has happened yet. Failures before the first piece
        were repeated by the model connection already. After a context-length refusal the window
        is compacted, after a second one the request is halved; a third ends the step. An empty
        reply is asked for again, once.

        Raises:
            StepFailedError: There is no reply to be had.
            StrataError: Recall cannot be reached, or refused the compacted window.
        """
        fitted = await self._prepare(window, offer)
        restarts = empties = overflows = 0
        while True:
            attempt = _Attempt(self, name)
            try:
                reply = await attempt.run(fitted)
            except ModelError as error:
                if error.kind is ModelErrorKind.CONTEXT_OVERFLOW:
                    overflows += 1
                    smaller = await self._smaller(window, offer, fitted, overflows)
                    if smaller is None:
                        raise from_model_error(error) from error
                    fitted = smaller
                    await self._restart(name, _TOO_LONG)
                    continue
                restarts += 1
                if not (attempt.started and error.retryable) or restarts > MAX_RESTARTS:
                    told = naming_key(error, self._bound.settings.key_owner)
                    raise from_model_error(told) from error
                await self._restart(name, f"The reply broke off: {error.message}")
                await self._sleep(_delay(restarts, error))
                continue
            self.usage += reply.usage
            self._gauge.observe(fitted.size, reply.usage)
            if not reply.is_empty:
                return reply
            if reply.finish_reason is FinishReason.LENGTH:
                raise cut_before_text()
            empties += 1
            if empties > 1:
                raise empty_reply()
            await self._restart(name, "The model gave an empty reply.")

    async def relay(self, name: StepName, event: ModelEvent, seen: set[int]) -> None:
        """Hands a piece of the reply on, if pieces are wanted."""
        if not self._stream_tokens:
            return
        if isinstance(event, TextDelta):
            await self._sink.emit(TextPiece(name.message_id, event.text))
        elif isinstance(event, ReasoningDelta):
            await self._sink.emit(ReasoningPiece(name.message_id, event.text))
        elif isinstance(event, ToolCallDelta):
            first = event.index not in seen
            seen.add(event.index)
            call_id, tool = (event.id, event.name) if first else ("", "")
            await self._sink.emit(
                ToolCallPiece(name.message_id, event.index, call_id, tool, event.arguments)
            )

    @property
    def bound(self) -> BoundModel:
        """The model that is asked."""
        return self._bound

    async def _prepare(self, window: WorkingWindow, offer: Offer) -> FittedRequest:
        if not self._read:
            self._gauge.read(window.messages, offer.tools, self._view)
            self._read = True
        fixed = tools_bytes(offer.tools.schemas) + len(
            window.messages[0].text.encode("utf-8", "replace")
        )
        least, size = self._gauge.least(fixed), self._bound.settings.context_window
        if least > size:
            raise system_prompt_too_large(least, size)
        fitted = self._fit(window, offer, self._gauge.max_bytes)
        if fitted.whole_size <= self._gauge.max_bytes:
            return fitted
        await self._make_room(window, offer, self._gauge.max_bytes)
        return self._fit(window, offer, self._gauge.max_bytes)

    async def _smaller(
        self, window: WorkingWindow, offer: Offer, refused: FittedRequest, overflows: int
    ) -> FittedRequest | None:
        """Returns a smaller request than the one refused; None if there is none."""
        if overflows > MAX_OVERFLOWS:
            return None
        max_bytes = refused.size * _REFUSED_SHARE
        if overflows == 1:
            await self._make_room(window, offer, max_bytes)
        else:
            max_bytes = refused.size / 2
        fitted = self._fit(window, offer, max_bytes)
        return fitted if fitted.size < refused.size else None

    async def _make_room(self, window: WorkingWindow, offer: Offer, max_bytes: float) -> None:
        fixed = self._view.size(window.messages[:1]) + tools_bytes(offer.tools.schemas)
        before = fixed + self._view.size(window.messages[1:])
        try:
            done = await self._compact(window.stored, self._view, max_bytes - fixed)
        except AbortedError as error:
            if error.reason is not Reason.REVISION_MISMATCH:
                raise
            # Somebody keeps changing the window; the next step finds it still too full.
            _log.warning("a window could not be compacted", error=repr(error))
            return
        if done is None:
            return
        self.usage += done.usage
        await window.compacted(done.window)
        after = self._view.size(window.messages) + tools_bytes(offer.tools.schemas)
        await self._sink.emit(
            WindowCompacted(done.summary, self._gauge.estimate(before), self._gauge.estimate(after))
        )

    def _fit(self, window: WorkingWindow, offer: Offer, max_bytes: float) -> FittedRequest:
        return build_request(window.messages, offer, self._view, max_bytes=max_bytes)

    async def _restart(self, name: StepName, reason: str) -> None:
        await self._sink.emit(StepRestarted(name.step_id, name.step, reason))


class _Attempt:
    """One request. `started` tells whether anything of the reply had come when it failed."""

    def __init__(self, asker: Asker, name: StepName) -> None:
        self.started = False
        self._asker = asker
        self._name = name

    async def run(self, fitted: FittedRequest) -> ModelReply:
        seen: set[int] = set()
        async with aclosing(self._asker.bound.chat.stream(fitted.request)) as events:
            async for event in events:
                if isinstance(event, ModelReply):
                    return event
                self.started = True
                await self._asker.relay(self._name, event, seen)
        raise ModelError(ModelErrorKind.CUT_OFF, "The reply has no end.")


def _delay(restarts: int, error: ModelError) -> float:
    if error.retry_after is not None:
        return min(error.retry_after, _MAX_DELAY)
    return _FIRST_DELAY * 2.0 ** (restarts - 1)
