"""Making the text of a summary: a ladder whose last rung needs no model.

The summarizer is asked first, then the agent's own model, each for the whole transcript. What is
too long for both is halved until it fits, and a summary is made of the summaries. When no model
gives anything usable in time, an extract stands in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from strata.agent_loop.compaction import transcript
from strata.agent_loop.domain.agents import Agent, ModelConfig
from strata.agent_loop.domain.messages import Message, SummaryPart
from strata.agent_loop.loop.gauge import Gauge
from strata.agent_loop.loop.ports import BoundModel, Models
from strata.agent_loop.models.domain import ChatMessage, ModelReply, ModelRequest, Usage
from strata.agent_loop.models.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.tokens import TokenEstimator, request_bytes
from strata.agent_loop.prompts.summary import summary_prompt
from strata.shared.logs import get_logger

CALL_SECONDS = 120.0
"""Limit of one call of a model; a person waits for the turn behind it."""
LADDER_SECONDS = 240.0
"""Limit of all calls together."""

_MAX_HALVINGS = 5
_MIN_LIMIT = 200

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """The text of a summary, and how it came about.

    Attributes:
        text: At most as long as asked for; never empty.
        rung: "summarizer", "agent", "chunks" or "extract".
        usage: Tokens of all calls that were made for it, failed ones not counted.
    """

    text: str
    rung: str
    usage: Usage


class TooLongError(Exception):
    """The transcript does not fit into the model's window, by the estimate or by its word."""


class Summarizer:
    """Summarises for one agent.

    Args:
        models: The configured models.
        tokens: What is known of bytes per token.
        agent: The agent, with its settings.
        bound: Its model.
    """

    def __init__(
        self, models: Models, tokens: TokenEstimator, agent: Agent, bound: BoundModel | None
    ) -> None:
        self._models = models
        self._tokens = tokens
        self._agent = agent
        self._bound = bound

    async def summarise(
        self, messages: Sequence[Message], earlier: Sequence[SummaryPart], limit: int
    ) -> Summary:
        """Returns a summary of at most `limit` characters, whatever becomes of the models.

        Args:
            messages: What is to be summarised, in order.
            earlier: Summaries of what came before, to be taken in.
            limit: Characters.
        """
        told = transcript.earlier_lines(earlier) + transcript.lines(messages, self._agent.timezone)
        ladder = _Ladder(self._tokens, self._agent, max(limit, _MIN_LIMIT))
        text, rung = "", "extract"
        try:
            async with asyncio.timeout(LADDER_SECONDS):
                text, rung = await ladder.climb(await self._candidates(), told)
        except TimeoutError:
            _log.warning("the summary took too long", agent_id=self._agent.id)
        if not text:
            text = transcript.extract(messages, earlier, self._agent.timezone, limit)
        return Summary(transcript.clip(text, limit), rung, ladder.usage)

    async def _candidates(self) -> dict[str, BoundModel]:
        found: dict[str, BoundModel] = {}
        handle = self._agent.compaction.model
        if handle:
            try:
                found["summarizer"] = await self._models.bind(
                    ModelConfig(handle=handle), self._agent.model_keys
                )
            except ModelError as error:
                _log.warning("the summarizer cannot be used", model=handle, error=str(error))
        if self._bound is not None:
            found["agent"] = self._bound
        return found


class _Ladder:
    """The rungs that ask a model."""

    def __init__(self, tokens: TokenEstimator, agent: Agent, limit: int) -> None:
        self.usage = Usage()
        self._tokens = tokens
        self._agent = agent
        self._limit = limit
        self._prompt = summary_prompt(agent.compaction.prompt, limit)

    async def climb(
        self, candidates: dict[str, BoundModel], told: Sequence[str]
    ) -> tuple[str, str]:
        """Returns the text and the rung; the text is empty if no model gave one."""
        alive: list[BoundModel] = []
        for rung, bound in candidates.items():
            try:
                return await self._ask(bound, told), rung
            except TooLongError:
                alive.append(bound)
            except (ModelError, TimeoutError) as error:
                self._note(bound, error)
        for bound in alive:
            try:
                return await self._halve(bound, told, _MAX_HALVINGS), "chunks"
            except (ModelError, TooLongError, TimeoutError) as error:
                self._note(bound, error)
        return "", "extract"

    async def _halve(self, bound: BoundModel, told: Sequence[str], depth: int) -> str:
        if depth == 0 or len(told) < 2:
            raise TooLongError
        middle = len(told) // 2
        parts = [
            transcript.part_line(number, await self._some(bound, half, depth - 1))
            for number, half in enumerate((told[:middle], told[middle:]), start=1)
        ]
        return await self._ask(bound, parts)

    async def _some(self, bound: BoundModel, told: Sequence[str], depth: int) -> str:
        try:
            return await self._ask(bound, told)
        except TooLongError:
            return await self._halve(bound, told, depth)

    async def _ask(self, bound: BoundModel, told: Sequence[str]) -> str:
        """Asks for a summary.

        Raises:
            TooLongError: The transcript does not fit.
            ModelError: There is none to be had; INVALID_REPLY if it is blank.
            TimeoutError: It took too long.
        """
        request = ModelRequest(
            [ChatMessage.system(self._prompt), ChatMessage.user("\n".join(told))]
        )
        gauge = Gauge(self._tokens, bound.settings, self._agent.id)
        # The answer needs room as well, where the model's settings reserve none.
        if gauge.estimate(request_bytes(request) + self._limit) > gauge.usable_tokens:
            raise TooLongError
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reply = await _reply(bound, request)
        except ModelError as error:
            if error.kind is ModelErrorKind.CONTEXT_OVERFLOW:
                raise TooLongError from error
            raise
        self.usage += reply.usage
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
