"""Compacts a window on request, outside of a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from strata.agent_loop.compaction.compactor import Compactor
from strata.agent_loop.compaction.plan import Obstacle, Plan, plan
from strata.agent_loop.compaction.summarizer import Summarizer
from strata.agent_loop.context.inspection import NextRequest
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.domain.agent.agents import CompactionSettings
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.usage_count import Count, uncounted
from strata.agent_loop.domain.ports import Models, Recall
from strata.agent_loop.models.tokens import TokenEstimator
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.clock import Clock
from strata.shared.telemetry import Telemetry

Inspect: TypeAlias = Callable[[str, str], Awaitable[NextRequest]]
"""Returns the next model request of a conversation; see `NextRequests.inspect`."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of a compaction.

    Attributes:
        summary: The new summary in the window; None if no message could leave it.
        tokens_before: Estimated tokens of the window before.
        tokens_after: Estimated tokens of the window after.
    """

    summary: Message | None
    tokens_before: int
    tokens_after: int


class ManualCompaction:
    """Compacts a conversation's window on request.

    No lock is taken: the swap succeeds only on the revision that was read, and a running turn
    appends its steps to the current window.

    Args:
        inspect: Reads an agent's window.
        models: The configured models.
        recall: Stores the windows.
        tokens: Estimates tokens from bytes.
        clock: The clock.
        telemetry: Gets the metrics of compactions; None for no metrics.
    """

    def __init__(
        self,
        inspect: Inspect,
        models: Models,
        recall: Recall,
        tokens: TokenEstimator,
        clock: Clock,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._inspect = inspect
        self._models = models
        self._recall = recall
        self._tokens = tokens
        self._clock = clock
        self._telemetry = telemetry

    async def compact(
        self,
        agent_id: str,
        conversation_id: str,
        settings: CompactionSettings | None = None,
        count: Count = uncounted,
    ) -> CompactionResult:
        """Compacts a window, full or not.

        Args:
            agent_id: The agent.
            conversation_id: Its conversation.
            settings: Settings that override the agent's for this compaction.
            count: Counts the tokens of each reply, even if the compaction fails afterwards.

        Raises:
            NotFoundError: AGENT_NOT_FOUND, CONVERSATION_NOT_FOUND.
            FailedPreconditionError: MODEL_NOT_CONFIGURED.
            AbortedError: REVISION_MISMATCH; the window changed during every attempt.
        """
        inspected = await self._inspect(agent_id, conversation_id)
        inspected = inspected.with_compaction(settings)
        agent, window, bound = inspected.agent, inspected.window, inspected.bound
        if bound is None:
            raise FailedPreconditionError(
                "No model is configured that could write the summary.",
                reason=Reason.MODEL_NOT_CONFIGURED,
            )
        view, token_budget = inspected.view, inspected.token_budget(self._tokens)
        fixed, held = inspected.fixed_bytes, view.size(window.messages[1:])
        before = token_budget.estimate(fixed + held)
        summarizer = Summarizer(self._models, self._tokens, agent, bound, count)
        compactor = Compactor(agent, summarizer, self._recall, self._clock, self._telemetry)
        compacted = await compactor.compact(window, view, _space(inspected, token_budget), None)
        if compacted is None:
            return CompactionResult(None, before, before)
        return CompactionResult(
            compacted.summary,
            before,
            token_budget.estimate(fixed + view.size(compacted.window.messages[1:])),
        )


def plan_on_request(inspected: NextRequest, token_budget: TokenBudget) -> Plan | Obstacle:
    """Returns the plan of the compaction that `ManualCompaction.compact` would make.

    Args:
        inspected: The next model request, with the settings of the compaction.
        token_budget: Token budget of its window.
    """
    if inspected.bound is None:
        return Obstacle.NO_MODEL
    space = _space(inspected, token_budget)
    settings = inspected.agent.compaction
    return plan(inspected.window.messages, inspected.view, space, settings, forced=True)


def _space(inspected: NextRequest, token_budget: TokenBudget) -> float:
    """Returns the bytes that messages may have: at most their present size, so that some leave."""
    held = inspected.view.size(inspected.window.messages[1:])
    return min(token_budget.max_bytes - inspected.fixed_bytes, held)
