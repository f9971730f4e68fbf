"""Writes the text of a summary, with fallbacks down to an extract that needs no model.

The summarizer is asked first, then the agent's own model, each for the whole transcript. If it is
too long for both, it is halved until the parts fit, and their summaries are summarised. If no model
gives a usable summary in time, an extract is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from strata.agent_loop.compaction import transcript
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.domain.agent.agents import Agent, ModelConfig
from strata.agent_loop.domain.conversation.messages import Message, SummaryPart
from strata.agent_loop.domain.model.chat import ChatMessage, ModelReply, ModelRequest
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.domain.model.usage_count import Count, uncounted
from strata.agent_loop.domain.ports import BoundModel, Models
from strata.agent_loop.models.tokens import TokenEstimator, request_bytes
from strata.agent_loop.prompts.summary import SUMMARY_ACKNOWLEDGEMENT, summary_prompt
from strata.shared.logs import get_logger

CALL_SECONDS = 120.0
"""Time limit of one model call; a user waits for the turn."""
LADDER_SECONDS = 240.0
"""Time limit of all calls together."""

_MAX_HALVINGS = 5
_MIN_LIMIT = 200

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """The text of a summary, and how it was made.

    Attributes:
        text: At most as long as requested; never empty.
        rung: "summarizer", "agent", "chunks" or "extract".
    """

    text: str
    rung: str


class TooLongError(Exception):
    """The transcript does not fit into the model's window, by estimate or by provider error."""


class Summarizer:
    """Summarises messages for one agent.

    Args:
        models: The configured models.
        tokens: Estimates tokens from bytes.
        agent: The agent, with its compaction settings.
        bound: Its model, or a function that returns its current model; None for no model.
        count: Counts the tokens of each reply, even if the summary is not used.
    """

    def __init__(
        self,
        models: Models,
        tokens: TokenEstimator,
        agent: Agent,
        bound: BoundModel | Callable[[], BoundModel] | None,
        count: Count = uncounted,
    ) -> None:
        self._models = models
        self._tokens = tokens
        self._agent = agent
        self._bound = bound
        self._count = count

    async def summarise(
        self,
        messages: Sequence[Message],
        earlier: Sequence[SummaryPart],
        limit: int,
        *,
        ask_model: bool = True,
    ) -> Summary:
        """Returns a summary of at most `limit` characters, even if all models fail.

        Args:
            messages: The messages to summarise, in order.
            earlier: Earlier summaries, which the new one replaces.
            limit: Maximum number of characters.
            ask_model: False for an extract, without a model call.
        """
        transcript_lines = transcript.earlier_lines(earlier) + transcript.lines(
            messages, self._agent.timezone
        )
        ladder = _Ladder(self._tokens, self._agent, max(limit, _MIN_LIMIT), self._count)
        text, rung = "", "extract"
        try:
            if ask_model:
                async with asyncio.timeout(LADDER_SECONDS):
                    text, rung = await ladder.climb(await self._candidates(), transcript_lines)
        except TimeoutError:
            _log.warning("the summary took too long", agent_id=self._agent.id)
        if not text:
            text = transcript.extract(messages, earlier, self._agent.timezone, limit)
        return Summary(transcript.clip(text, limit), rung)

    async def _candidates(self) -> dict[str, BoundModel]:
        candidates: dict[str, BoundModel] = {}
        compaction = self._agent.compaction
        handle = compaction.model or self._agent.model.handle
        if compaction.model or compaction.model_settings:
            config = replace(compaction.model_settings or ModelConfig(), handle=handle)
            try:
                candidates["summarizer"] = await self._models.bind(config, self._agent.model_keys)
            except ModelError as error:
                _log.warning("the summarizer cannot be used", model=handle, error=str(error))
        bound = self._bound() if callable(self._bound) else self._bound
        if bound is not None:
            candidates["agent"] = bound
        return candidates


class _Ladder:
    """The attempts to get a summary from a model, from the best to the last."""

    def __init__(self, tokens: TokenEstimator, agent: Agent, limit: int, count: Count) -> None:
        self._count = count
        self._tokens = tokens
        self._agent = agent
        self._limit = limit
        self._opening = [ChatMessage.system(summary_prompt(agent.compaction.prompt, limit))]
        if agent.compaction.prompt_acknowledgement:
            self._opening.append(ChatMessage.assistant(SUMMARY_ACKNOWLEDGEMENT))

    async def climb(
        self, candidates: dict[str, BoundModel], transcript_lines: Sequence[str]
    ) -> tuple[str, str]:
        """Returns the text and the rung; the text is empty if no model gave a summary."""
        alive: list[BoundModel] = []
        for rung, bound in candidates.items():
            try:
                return await self._ask(bound, transcript_lines), rung
            except TooLongError:
                alive.append(bound)
            except (ModelError, TimeoutError) as error:
                self._note(bound, error)
        for bound in alive:
            try:
                return await self._halve(bound, transcript_lines, _MAX_HALVINGS), "chunks"
            except (ModelError, TooLongError, TimeoutError) as error:
                self._note(bound, error)
        return "", "extract"

    async def _halve(self, bound: BoundModel, transcript_lines: Sequence[str], depth: int) -> str:
        if depth == 0 or len(transcript_lines) < 2:
            raise TooLongError
        middle = len(transcript_lines) // 2
        parts = [
            transcript.part_line(number, await self._some(bound, half, depth - 1))
            for number, half in enumerate(
                (transcript_lines[:middle], transcript_lines[middle:]), start=1
            )
        ]
        return await self._ask(bound, parts)

    async def _some(self, bound: BoundModel, transcript_lines: Sequence[str], depth: int) -> str:
        try:
            return await self._ask(bound, transcript_lines)
        except TooLongError:
            return await self._halve(bound, transcript_lines, depth)

    async def _ask(self, bound: BoundModel, transcript_lines: Sequence[str]) -> str:
        """Requests a summary from the model.

        Raises:
            TooLongError: The transcript does not fit.
            ModelError: The model failed; INVALID_REPLY if the summary is blank.
            TimeoutError: The call took too long.
        """
        request = ModelRequest([*self._opening, ChatMessage.user("\n".join(transcript_lines))])
        token_budget = TokenBudget(self._tokens, bound.settings, self._agent.id)
        # The summary needs space too, for which the model's settings may reserve none.
        if token_budget.estimate(request_bytes(request) + self._limit) > token_budget.usable_tokens:
            raise TooLongError
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reply = await _reply(bound, request)
        except ModelError as error:
            if error.kind is ModelErrorKind.CONTEXT_OVERFLOW:
                raise TooLongError from error
            raise
        await self._count(reply.usage, bound.settings.handle)
        text = reply.text.strip()
        if not text:
            raise ModelError(ModelErrorKind.INVALID_REPLY, "The summary is empty.")
        return text

    def _note(self, bound: BoundModel, error: Exception) -> None:
        _log.warning(
            "a model gave no summary",
            agent_id=self._agent.id,
            model=bound.settings.handle,
            error=repr(error),
        )


async def _reply(bound: BoundModel, request: ModelRequest) -> ModelReply:
    async with aclosing(bound.chat.stream(request)) as events:
        async for event in events:
            if isinstance(event, ModelReply):
                return event
    raise ModelError(ModelErrorKind.CUT_OFF, "The summary has no end.")
