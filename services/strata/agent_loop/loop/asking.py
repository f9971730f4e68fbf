"""Asking the model for one reply: what is sent, what is relayed, when it is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from strata.agent_loop.domain.events import (
    ReasoningPiece,
    StepRestarted,
    TextPiece,
    ToolCallPiece,
)
from strata.agent_loop.domain.messages import Message
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.failures import (
    cut_before_text,
    empty_reply,
    from_model_error,
    system_prompt_too_large,
)
from strata.agent_loop.loop.packaging import return_limit
from strata.agent_loop.loop.ports import BoundModel, EventSink
from strata.agent_loop.loop.requests import FittedRequest, build_request
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
from strata.agent_loop.models.tokens import (
    DEFAULT_HEADROOM,
    TokenEstimator,
    TokenKey,
    tools_bytes,
)

MAX_RESTARTS = 2
_FIRST_DELAY = 0.5
_MAX_DELAY = 20.0
# More bytes per token than any text has: what is too large by this measure is too large.
_GENEROUS_RATIO = 6.0


@dataclass(frozen=True, slots=True)
class StepName:
    """The step that is under way, and the id that its assistant message will have."""

    step: int
    step_id: str
    message_id: str


class Asker:
    """Asks one agent's model.

    Attributes:
        usage: Tokens of all replies so far.
        evictable: Oldest messages that the last answered request could not show.

    Args:
        bound: The model.
        tokens: What is known of bytes per token.
        agent_id: The agent, for the learnt ratio.
        sink: Where the pieces go.
        stream_tokens: Whether they are wanted.
        sleep: Waits between two requests.
    """

    def __init__(
        self,
        bound: BoundModel,
        tokens: TokenEstimator,
        agent_id: str,
        sink: EventSink,
        *,
        stream_tokens: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.usage = Usage()
        self.evictable = 0
        self._bound = bound
        self._tokens = tokens
        self._sink = sink
        self._stream_tokens = stream_tokens
        self._sleep = sleep
        settings = bound.settings
        self._key = TokenKey(settings.endpoint_type, settings.model, agent_id)

    async def ask(self, name: StepName, window: Sequence[Message], tools: ToolSet) -> ModelReply:
        """Returns the model's reply to the window.

        A stream that breaks after its first piece is begun anew, at most `MAX_RESTARTS` times;
        no tool has run by then, so nothing has happened yet. Failures before the first piece
        were repeated by the model connection already. A context-length refusal halves the
        request, once. An empty reply is asked for again, once.

        Raises:
            StepFailedError: There is no reply to be had.
        """
        max_bytes = self._budget(window, tools)
        restarts = empties = overflows = 0
        while True:
            fitted = self._fit(window, tools, max_bytes)
            attempt = _Attempt(self, name)
            try:
                reply = await attempt.run(fitted)
            except ModelError as error:
                if error.kind is ModelErrorKind.CONTEXT_OVERFLOW:
                    overflows += 1
                    if overflows > 1 or fitted.minimal:
                        raise from_model_error(error) from error
                    max_bytes = fitted.size / 2
                    await self._restart(
                        name, "The prompt was too long; older messages are left out."
                    )
                    continue
                restarts += 1
                if not (attempt.started and error.retryable) or restarts > MAX_RESTARTS:
                    told = naming_key(error, self._bound.settings.key_owner)
                    raise from_model_error(told) from error
                await self._restart(name, f"The reply broke off: {error.message}")
                await self._sleep(_delay(restarts, error))
                continue
            self.usage += reply.usage
            self._tokens.observe(self._key, fitted.size, reply.usage)
            if not reply.is_empty:
                self.evictable = fitted.evictable
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

    def _budget(self, window: Sequence[Message], tools: ToolSet) -> float:
        settings = self._bound.settings
        fixed = tools_bytes(tools.schemas) + len(window[0].text.encode("utf-8", "replace"))
        optimistic = int(fixed / max(_GENEROUS_RATIO, self._tokens.ratio(self._key)))
        if optimistic > settings.context_window:
            raise system_prompt_too_large(optimistic, settings.context_window)
        reserve = min(settings.max_tokens or 0, settings.context_window // 2)
        usable = (settings.context_window - reserve) * (1.0 - DEFAULT_HEADROOM)
        return usable * self._tokens.ratio(self._key)

    def _fit(self, window: Sequence[Message], tools: ToolSet, max_bytes: float) -> FittedRequest:
        limit = return_limit(self._bound.settings.context_window)
        return build_request(window, tools, return_limit=limit, max_bytes=max_bytes)

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
