"""A compaction that somebody asks for, outside of any turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from strata.agent_loop.compaction.compactor import Compactor
from strata.agent_loop.compaction.summarizer import Summarizer
from strata.agent_loop.domain.agents import CompactionSettings
from strata.agent_loop.domain.messages import Message
from strata.agent_loop.inspection import NextRequest
from strata.agent_loop.loop.ports import Models, Recall
from strata.agent_loop.loop.requests import view_of
from strata.agent_loop.loop.token_budget import TokenBudget
from strata.agent_loop.models.tokens import TokenEstimator, tools_bytes
from strata.shared.clock import Clock
from strata.shared.errors import FailedPreconditionError, Reason

Inspect: TypeAlias = Callable[[str, str], Awaitable[NextRequest]]
"""Returns what the next model call would be given: see `AgentLifecycle.inspect`."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did.

    Attributes:
        summary: The summary now in the window; None if nothing could leave it.
        tokens_before: Estimated tokens of the window before.
        tokens_after: Estimated tokens of it now.
    """

    summary: Message | None
    tokens_before: int
    tokens_after: int


class ManualCompaction:
    """Compacts a conversation's window now.

    It takes no lease: the swap is made on the revision that was read, or not at all, and a turn
    that is under way adds its steps to whatever window it finds.

    Args:
        inspect: Reads an agent's window.
        models: The configured models.
        recall: Where windows are kept.
        tokens: What is known of bytes per token.
        clock: The clock.
    """

    def __init__(
        self,
        inspect: Inspect,
        models: Models,
        recall: Recall,
        tokens: TokenEstimator,
        clock: Clock,
    ) -> None:
        self._inspect = inspect
        self._models = models
        self._recall = recall
        self._tokens = tokens
        self._clock = clock

    async def compact(
        self, agent_id: str, conversation_id: str, settings: CompactionSettings | None = None
    ) -> CompactionResult:
        """Compacts a window, full or not.

        Args:
            agent_id: The agent.
            conversation_id: Its conversation.
            settings: What is not to be as the agent has it, for this once.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
            FailedPreconditionError: MODEL_NOT_CONFIGURED.
            AbortedError: REVISION_MISMATCH; the conversation went on meanwhile, repeatedly.
        """
        inspected = await self._inspect(agent_id, conversation_id)
        agent, window, toolset, bound = (
            inspected.agent,
            inspected.window,
            inspected.tools,
            inspected.bound,
        )
        if settings is not None:
            agent = replace(agent, compaction=settings.over(agent.compaction))
        if bound is None:
            raise FailedPreconditionError(
                "There is no model that could write the summary.",
                reason=Reason.MODEL_NOT_CONFIGURED,
            )
        view = view_of(bound.settings, agent)
        token_budget = TokenBudget(self._tokens, bound.settings, agent.id)
        token_budget.read(inspected.counted, toolset, view)
        fixed = view.size(window.messages[:1]) + tools_bytes(toolset.schemas)
        held = view.size(window.messages[1:])
        before = token_budget.estimate(fixed + held)
        summarizer = Summarizer(self._models, self._tokens, agent, bound)
        compactor = Compactor(agent, summarizer, self._recall, self._clock)
        space = min(token_budget.max_bytes - fixed, held)
        done = await compactor.compact(window, view, space, None)
        if done is None:
            return CompactionResult(None, before, before)
        return CompactionResult(
            done.summary, before, token_budget.estimate(fixed + view.size(done.window.messages[1:]))
        )
