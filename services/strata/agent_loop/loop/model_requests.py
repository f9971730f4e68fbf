"""Requests one reply from the model: fits the prompt, relays the stream, retries and fails over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

from strata.agent_loop.context.added_arguments import ArgumentsStream
from strata.agent_loop.context.requests import FittedRequest, Offer, View, build_request, view_of
from strata.agent_loop.context.token_budget import (
    MESSAGES_SHARE,
    TokenBudget,
    compaction_helps,
    files_excess,
)
from strata.agent_loop.context.working_window import WorkingWindow
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.conversation.messages import Window
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    FinishReason,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageEvent,
)
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind, naming_key
from strata.agent_loop.domain.ports import BoundModel, Compacted, EventSink
from strata.agent_loop.domain.run.events import (
    ModelRequestSent,
    ReasoningPiece,
    ReplyReceived,
    StepRestarted,
    TextPiece,
    ToolCallPiece,
    WindowCompacted,
)
from strata.agent_loop.domain.run.request_digest import digest_request
from strata.agent_loop.loop.failures import (
    StepFailedError,
    all_failed,
    cut_before_text,
    cut_json_reply,
    empty_reply,
    from_model_error,
    invalid_reply,
    system_prompt_too_large,
)
from strata.agent_loop.loop.fallbacks import ModelChain, may_fail_over
from strata.agent_loop.loop.image_verdicts import ImageVerdicts
from strata.agent_loop.loop.images import image_ids, without_images
from strata.agent_loop.loop.replies_in_json import (
    CheckedReply,
    HeldPieces,
    checked,
    repair_of,
)
from strata.agent_loop.loop.storable_pieces import StorablePieces
from strata.agent_loop.models.tokens import TokenEstimator, tools_bytes
from strata.agent_loop.prompts.parts import system_parts
from strata.protocol.errors import AbortedError, Reason
from strata.shared.logs import get_logger
from strata.shared.text_bytes import text_bytes
from strata.shared.usage import Usage

MAX_RESTARTS = 2
MAX_OVERFLOWS = 2
"""How often one step sends a smaller request after a context-length error."""

_FIRST_DELAY = 0.5
_MAX_DELAY = 20.0
# After a context-length error the next request has this share of the refused one's bytes: the
# provider counts more tokens than estimated, and its error rarely states how many.
_REFUSED_SHARE = 0.7
# Text such as emoji can have this many times more tokens per byte than the text that was counted.
_MOST_UNDERESTIMATED = 3
# Some servers refuse images with an error that does not mention images.
_ABOUT_IMAGES = frozenset({ModelErrorKind.IMAGES_REFUSED, ModelErrorKind.BAD_REQUEST})
_IMAGES_REFUSED = "the provider of this model refused it"
WITHOUT_IMAGES = "The provider refused the images; the model is asked without them."
"""First words of the reason of a restart without images."""
WITHOUT_NEW_IMAGES = "The provider refused new images; the model is asked without these."
"""First words of the reason of a restart without images that the model has not accepted before."""
TOO_LONG = "The prompt was too long; older messages are summarised or left out."
"""The reason of a restart with a smaller request."""
NOT_AS_ASKED = "The reply does not satisfy the response format"
"""First words of the reason of a restart in which the model must correct its reply."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StepName:
    """Identifies the current step and the assistant message that it will store."""

    step: int
    step_id: str
    message_id: str


class Compact(Protocol):
    """Makes space in a window; see `compaction.compactor.Compactor.compact`."""

    async def __call__(self, window: Window, view: View, space: float) -> Compacted | None:
        """Compacts the window; returns None if no message could leave it."""
        ...


class CloseFiles(Protocol):
    """Makes the system message smaller; see `loop.steps.Steps`."""

    async def __call__(self, excess: int) -> bool:
        """Closes open files until the system message is `excess` bytes smaller, or none is open.

        Returns:
            Whether the system message became smaller.
        """
        ...


class ModelRequester:
    """Requests replies from an agent's model and its fallback models.

    Attributes:
        usage: Tokens of all model calls so far: of replies, of summaries, and, estimated, of
            replies that broke off or were cancelled.

    Args:
        chain: The models that may answer.
        tokens: Estimates tokens from bytes.
        agent: The agent.
        sink: Receives the events.
        compact: Makes space in the window.
        close_files: Makes space in the system message.
        load: Returns a request with the bytes of its images.
        image_verdicts: The images that the models have accepted or refused.
        stream_tokens: Whether to emit the reply in pieces while it is streamed.
        json_replies: Whether replies to the user must be JSON.
        sleep: Waits between two requests.
    """

    def __init__(
        self,
        chain: ModelChain,
        tokens: TokenEstimator,
        agent: Agent,
        sink: EventSink,
        *,
        compact: Compact,
        close_files: CloseFiles,
        load: Callable[[ModelRequest], Awaitable[ModelRequest]],
        image_verdicts: ImageVerdicts,
        stream_tokens: bool,
        json_replies: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.usage = Usage()
        self._chain = chain
        self._tokens = tokens
        self._agent = agent
        self._sink = sink
        self._compact = compact
        self._close_files = close_files
        self._load = load
        self._image_verdicts = image_verdicts
        self._stream_tokens = stream_tokens
        self._json_replies = json_replies
        self._sleep = sleep
        self._has_emitted = False
        self._sent_system: str | None = None
        self._measure()

    async def ask(
        self, name: StepName, window: WorkingWindow, offer: Callable[[], Offer]
    ) -> ModelReply:
        """Returns the model's reply to the window, which is compacted first if it is too full.

        Failures are handled as follows:

        - A stream that breaks after its first piece is restarted, at most `MAX_RESTARTS` times.
          No tool has run by then. The model connection retries failures before the first piece.
        - After a context-length error the window is compacted; after a second one the request is
          halved; a third one fails the step.
        - If the provider refuses a request with images, those that it has not accepted before are
          replaced by texts, also in later turns; if it refuses it again, or has accepted all or
          none of them before, all images are.
        - After an empty reply the model is asked once more.
        - A reply that does not satisfy the response format is corrected once (`replies_in_json`).
        - After an error of the provider the next model of the chain is asked, with a request that
          fits its window. It also answers in the following steps.

        If the step fails after pieces of a reply were emitted, a `StepRestarted` withdraws them.

        Args:
            name: The step.
            window: The window.
            offer: Returns the tools and the reply format for the current model; it is called for
                each model that is asked.

        Raises:
            StepFailedError: No model gave a usable reply.
            StrataError: Recall cannot be reached, or refused the compacted window.
        """
        self._has_emitted = False
        try:
            return await self._ask_current(name, window, offer)
        except StepFailedError as failed:
            if not (self._chain.has_next and self._is_passed_over(failed)):
                await self._give_up(name, failed)
                raise
            first = failed
        return await self._ask_fallbacks(name, window, offer, first)

    async def use(self, handle: str) -> None:
        """Switches to the fallback model with this handle, if the chain has it."""
        if await self._chain.advance_to(handle):
            self._measure()

    async def _ask_fallbacks(
        self,
        name: StepName,
        window: WorkingWindow,
        offer: Callable[[], Offer],
        first: StepFailedError,
    ) -> ModelReply:
        fallback_errors: dict[str, str] = {}
        failed, failed_handle = first, self._chain.handle
        while self._chain.has_next:
            upcoming = self._chain.upcoming
            try:
                await self._chain.advance()
            except ModelError as error:
                _log.warning("a fallback model cannot be used", model=upcoming, error=str(error))
                fallback_errors[upcoming] = error.message
                continue
            self._measure()
            await self._restart(
                name,
                f"{failed_handle} could not answer: {failed.problem.rstrip('. ')}."
                f" {upcoming} is asked instead.",
                model=upcoming,
                failed_model=failed_handle,
                failed_reason=failed.failure.reason,
            )
            try:
                return await self._ask_current(name, window, offer)
            except StepFailedError as error:
                failed, failed_handle = error, upcoming
                fallback_errors[upcoming] = error.problem
        failed = all_failed(first, fallback_errors)
        await self._give_up(name, failed)
        raise failed

    async def _ask_current(
        self, name: StepName, window: WorkingWindow, offer: Callable[[], Offer]
    ) -> ModelReply:
        offered = offer()
        return await self._ask(name, window, offered, await self._prepare(window, offered))

    def _is_passed_over(self, failed: StepFailedError) -> bool:
        """Returns whether the next model is asked after this failure of the current one."""
        error = failed.model_error
        return self._chain.is_at_fallback or (error is not None and may_fail_over(error))

    async def _give_up(self, name: StepName, failed: StepFailedError) -> None:
        if self._has_emitted:
            await self._restart(name, failed.failure.message, given_up=True)

    def _measure(self) -> None:
        """Resets token budget and message view for the current model."""
        settings = self._chain.current.settings
        self._hidden_images = frozenset[str]()
        self._token_budget = TokenBudget(self._tokens, settings, self._agent.id)
        self._view = view_of(settings, self._agent, json_replies=self._json_replies)
        self._read = False

    async def _ask(
        self, name: StepName, window: WorkingWindow, offer: Offer, fitted: FittedRequest
    ) -> ModelReply:
        restarts = empties = overflows = 0
        refused_images = frozenset[str]()
        whole, repair = fitted, tuple[ChatMessage, ...]()
        while True:
            fitted = whole.continued(repair)
            attempt = _Attempt(self, name, offer, window)
            await self._sink.emit(self._sent(name, window, fitted))
            try:
                reply = await attempt.run(fitted)
            except asyncio.CancelledError:
                self.usage += attempt.usage(self._token_budget, fitted)
                raise
            except ModelError as error:
                # Providers do not charge for refused requests.
                broken = attempt.usage(self._token_budget, fitted) if attempt.started else Usage()
                await self.count(broken, name.message_id, self._chain.handle)
                if error.kind is ModelErrorKind.CONTEXT_OVERFLOW:
                    overflows += 1
                    smaller = await self._smaller(window, offer, fitted, overflows)
                    if smaller is None:
                        raise self._too_long(window, offer, fitted, error) from error
                    whole = smaller
                    await self._restart(name, TOO_LONG)
                    continue
                if error.kind in _ABOUT_IMAGES and attempt.image_ids:
                    # The image stays in the window and would make every later turn fail.
                    new, reason = self._leave_images_out(attempt.image_ids)
                    refused_images |= new
                    whole = self._fit(window, offer, self._token_budget.max_bytes)
                    await self._restart(name, f"{reason} {error.message}")
                    continue
                restarts += 1
                if not (attempt.started and error.retryable) or restarts > MAX_RESTARTS:
                    explained = naming_key(error, self._chain.current.settings.key_owner)
                    raise from_model_error(explained) from error
                await self._restart(name, f"The reply broke off: {error.message}")
                await self._sleep(_delay(restarts, error))
                continue
            await self.count(reply.usage, name.message_id, self._chain.handle)
            self._token_budget.observe(fitted.size, reply.usage)
            self._image_verdicts.note(self._chain.handle, attempt.image_ids, accepted=True)
            # Only now: a request may also be refused for another reason than its images.
            self._image_verdicts.note(self._chain.handle, refused_images, accepted=False)
            if not reply.is_empty:
                result = checked(reply, offer)
                if not result.problem:
                    await attempt.release(result.reply)
                    return result.reply
                repair = await self._repair(name, result, repaired=bool(repair))
                continue
            if reply.finish_reason is FinishReason.LENGTH:
                raise cut_before_text()
            empties += 1
            if empties > 1:
                raise empty_reply()
            await self._restart(name, "The model gave an empty reply.")

    def _leave_images_out(self, shown: frozenset[str]) -> tuple[frozenset[str], str]:
        """Leaves images out of further requests, because the provider refused one that shows them.

        Args:
            shown: The images of the request.

        Returns:
            Those that the provider has not accepted before, and the first words of the reason of
            the restart.
        """
        new = self._image_verdicts.not_accepted(self._chain.handle, shown)
        if new and new != shown:
            self._hidden_images |= new
            return new, WITHOUT_NEW_IMAGES
        self._view = replace(self._view, without_images=_IMAGES_REFUSED)
        return new, WITHOUT_IMAGES

    async def _repair(
        self, name: StepName, result: CheckedReply, *, repaired: bool
    ) -> tuple[ChatMessage, ...]:
        """Returns messages that ask the model to correct its reply; fails after the first time."""
        if result.reply.finish_reason is FinishReason.LENGTH:
            raise cut_json_reply()
        if repaired:
            raise invalid_reply(result.problem)
        await self._restart(name, f"{NOT_AS_ASKED}: {result.problem}.")
        return tuple(repair_of(result.reply, result.problem))

    async def count(self, usage: Usage, message_id: str, handle: str) -> None:
        """Adds the tokens of a model call to the usage and emits them.

        Args:
            usage: Tokens of the call.
            message_id: Id of the message that stores the reply; a new id for a summary.
            handle: Handle of the model.
        """
        self.usage += usage
        await self._sink.emit(ReplyReceived(message_id, usage, handle))

    async def relay(
        self,
        name: StepName,
        event: ModelEvent,
        offer: Offer,
        calls: dict[int, ArgumentsStream | None],
    ) -> None:
        """Emits a piece of the reply, if the client requested deltas.

        Args:
            name: The step.
            event: The piece.
            offer: The tools that the model is offered.
            calls: Filters of the arguments of streamed calls, by index of the call.
        """
        if not self._stream_tokens:
            return
        self._has_emitted = self._has_emitted or isinstance(
            event, TextDelta | ReasoningDelta | ToolCallDelta
        )
        if isinstance(event, TextDelta):
            await self._sink.emit(TextPiece(name.message_id, event.text, not offer.json_text))
        elif isinstance(event, ReasoningDelta):
            await self._sink.emit(ReasoningPiece(name.message_id, event.text))
        elif isinstance(event, ToolCallDelta):
            first = event.index not in calls
            if first:
                calls[event.index] = offer.stream(event.name) if offer.stream else None
            call_id, tool = (event.id, event.name) if first else ("", "")
            arguments, passed = event.arguments, calls[event.index]
            if passed is not None:
                arguments, thought = passed.feed(arguments)
                if thought:
                    await self._sink.emit(ReasoningPiece(name.message_id, thought))
                if not (first or arguments):
                    return
            await self._sink.emit(
                ToolCallPiece(name.message_id, event.index, call_id, tool, arguments)
            )

    async def load(self, request: ModelRequest) -> ModelRequest:
        """Returns a request with the bytes of its images, without those that were refused.

        The digest of a request includes these images, since a replay does not know the verdicts.
        """
        refused = self._image_verdicts.refused(self._chain.handle, image_ids(request))
        hidden = self._hidden_images | refused
        return await self._load(without_images(request, hidden, _IMAGES_REFUSED))

    @property
    def bound(self) -> BoundModel:
        """The model that is asked."""
        return self._chain.current

    @property
    def token_budget(self) -> TokenBudget:
        """Token budget of the model that is asked."""
        return self._token_budget

    async def _prepare(self, window: WorkingWindow, offer: Offer) -> FittedRequest:
        if not self._read:
            self._token_budget.read(window.counted, offer.tools, self._view)
            self._read = True
        await self._leave_space(window, offer, self._token_budget.max_bytes)
        fixed = _fixed_bytes(window, offer)
        if self._token_budget.least(fixed) > self._chain.current.settings.context_window:
            text, size = window.messages[0].text, self._chain.current.settings.context_window
            parts = system_parts(text, offer.schemas, self._token_budget.least)
            raise system_prompt_too_large(parts, size)
        fitted = self._fit(window, offer, self._token_budget.max_bytes)
        if fitted.whole_size <= self._token_budget.max_bytes:
            return fitted
        await self._make_space(window, offer, self._token_budget.max_bytes)
        return self._fit(window, offer, self._token_budget.max_bytes)

    async def _smaller(
        self, window: WorkingWindow, offer: Offer, refused: FittedRequest, overflows: int
    ) -> FittedRequest | None:
        """Returns a smaller request than the refused one; None if it cannot be smaller."""
        if overflows > MAX_OVERFLOWS:
            return None
        max_bytes = refused.size * _REFUSED_SHARE
        if overflows == 1:
            await self._leave_space(window, offer, max_bytes)
            await self._make_space(window, offer, max_bytes)
        else:
            max_bytes = refused.size / 2
        fitted = self._fit(window, offer, max_bytes)
        return fitted if fitted.size < refused.size else None

    def _too_long(
        self, window: WorkingWindow, offer: Offer, refused: FittedRequest, error: ModelError
    ) -> StepFailedError:
        """Returns the error of a step whose smallest request was refused as too long."""
        fixed, size = _fixed_bytes(window, offer), self._chain.current.settings.context_window
        max_tokens = self._token_budget.estimate(fixed) * _MOST_UNDERESTIMATED
        if fixed < refused.size * (1.0 - MESSAGES_SHARE) or max_tokens < size:
            return from_model_error(error)
        # Not the messages: memory has more tokens than estimated from its bytes.
        parts = system_parts(window.messages[0].text, offer.schemas, self._token_budget.estimate)
        return system_prompt_too_large(parts, size, refusal=error.message)

    async def _leave_space(self, window: WorkingWindow, offer: Offer, max_bytes: float) -> None:
        """Closes open files that take space from the messages' share of the prompt."""
        excess = files_excess(_fixed_bytes(window, offer), max_bytes)
        if excess:
            await self._close_files(excess)

    async def _make_space(self, window: WorkingWindow, offer: Offer, max_bytes: float) -> None:
        fixed = _fixed_bytes(window, offer)
        if not compaction_helps(fixed, max_bytes):
            return
        before = fixed + self._view.size(window.messages[1:])
        try:
            compacted = await self._compact(window.stored, self._view, max_bytes - fixed)
        except AbortedError as error:
            if error.reason is not Reason.REVISION_MISMATCH:
                raise
            # Others keep changing the window; the next step tries again.
            _log.warning("the window changed during compaction", error=repr(error))
            return
        if compacted is None:
            return
        window.compacted(compacted.window)
        after = self._view.size(window.messages) + tools_bytes(offer.schemas)
        await self._sink.emit(
            WindowCompacted(
                compacted.summary,
                self._token_budget.estimate(before),
                self._token_budget.estimate(after),
            )
        )

    def _fit(self, window: WorkingWindow, offer: Offer, max_bytes: float) -> FittedRequest:
        return build_request(window.messages, offer, self._view, max_bytes=max_bytes)

    def _sent(
        self, name: StepName, window: WorkingWindow, fitted: FittedRequest
    ) -> ModelRequestSent:
        prompt_tokens, ratio = self._token_budget.estimate(fitted.size), self._token_budget.ratio
        before = window.read_text if self._sent_system is None else self._sent_system
        digest = digest_request(fitted.request, window.messages, ratio, before)
        self._sent_system = fitted.request.messages[0].text
        return ModelRequestSent(name.message_id, prompt_tokens, ratio, self._chain.handle, digest)

    async def _restart(self, name: StepName, reason: str, **details: Any) -> None:
        self._has_emitted = False
        restarted = StepRestarted(name.step_id, name.step, reason, name.message_id, **details)
        await self._sink.emit(restarted)


def _fixed_bytes(window: WorkingWindow, offer: Offer) -> int:
    """Returns the bytes that every request has: the system message and the tools."""
    return window.system_bytes + tools_bytes(offer.schemas)


class _Attempt:
    """One request.

    Attributes:
        started: Whether a piece of the reply has arrived.
        image_ids: The images that the request shows.
    """

    def __init__(
        self, asker: ModelRequester, name: StepName, offer: Offer, window: WorkingWindow
    ) -> None:
        self.started = False
        self.image_ids = frozenset[str]()
        self._asker = asker
        self._held_pieces = HeldPieces(offer)
        self._pieces = StorablePieces(lambda: window.call_ids)
        self._name = name
        self._offer = offer
        self._calls: dict[int, ArgumentsStream | None] = {}
        self._received_bytes = 0
        self._reported = Usage()

    def usage(self, token_budget: TokenBudget, fitted: FittedRequest) -> Usage:
        """Returns the tokens of the request so far: reported by the provider, or estimated."""
        if self._reported != Usage():
            return self._reported
        return Usage(
            prompt_tokens=token_budget.estimate(fitted.size),
            completion_tokens=token_budget.estimate(self._received_bytes),
            estimated=True,
        )

    async def run(self, fitted: FittedRequest) -> ModelReply:
        request = await self._asker.load(fitted.request)
        self.image_ids = image_ids(request)
        async with aclosing(self._asker.bound.chat.stream(request)) as events:
            async for event in events:
                if isinstance(event, ModelReply):
                    for piece in self._pieces.rest():
                        await self._pass_on(piece)
                    return self._pieces.with_ids(event)
                self.started = True
                self._note(event)
                if (storable := self._pieces.take(event)) is not None:
                    await self._pass_on(storable)
        raise ModelError(ModelErrorKind.CUT_OFF, "The reply has no end.")

    async def release(self, reply: ModelReply) -> None:
        """Emits the pieces that were held back, in the form in which the reply is stored."""
        for event in self._held_pieces.events_of(reply):
            await self._relay(event)

    async def _pass_on(self, event: ModelEvent) -> None:
        if not self._held_pieces.take(event):
            await self._relay(event)

    async def _relay(self, event: ModelEvent) -> None:
        await self._asker.relay(self._name, event, self._offer, self._calls)

    def _note(self, event: ModelEvent) -> None:
        if isinstance(event, UsageEvent):
            self._reported = event.usage
        elif isinstance(event, TextDelta | ReasoningDelta):
            self._received_bytes += text_bytes(event.text)
        elif isinstance(event, ToolCallDelta):
            self._received_bytes += text_bytes(event.arguments)


def _delay(restarts: int, error: ModelError) -> float:
    if error.retry_after is not None:
        return min(error.retry_after, _MAX_DELAY)
    return _FIRST_DELAY * 2.0 ** (restarts - 1)
