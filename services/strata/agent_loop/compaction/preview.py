"""Describes what a planned compaction does with each message of a window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from strata.agent_loop.compaction.plan import Obstacle, Plan
from strata.agent_loop.compaction.transcript import brief
from strata.agent_loop.context.inspection import NextRequest
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.domain.conversation.messages import Message
from strata.shared.messages import MessageRole

MAX_MESSAGES = 1_000
"""Messages that a preview lists."""

EXCERPT_CHARS = 120
"""Characters shown of a message."""


class PreviewOutcome(StrEnum):
    """The effect of a compaction on a message."""

    KEPT = "kept"
    SUMMARIZED = "summarized"
    REPLACED = "replaced"
    """It is an earlier summary, which the new one replaces."""


@dataclass(frozen=True, slots=True)
class PreviewedMessage:
    """A message of a window, and what a compaction does with it.

    Attributes:
        message: The message.
        outcome: The effect of the compaction on it.
        tokens: Its tokens as the model sees it, estimated.
        excerpt: The beginning of its text; empty for a message that clients are not shown.
    """

    message: Message
    outcome: PreviewOutcome
    tokens: int
    excerpt: str


@dataclass(frozen=True, slots=True)
class OutcomeSum:
    """The messages with one outcome, and their tokens."""

    message_count: int
    tokens: int


@dataclass(frozen=True, slots=True)
class CompactionPreview:
    """The effect that a compaction would have.

    Attributes:
        messages: The messages of the window in order, without the system message; at most
            `MAX_MESSAGES`, those around the last one that is removed.
        first_position: Position of the first of them in the window.
        sums: The sums of the whole window, by outcome.
        obstacle: Why no message would be removed; None if one would.
        tokens_before: Estimated tokens of the window now.
        tokens_kept: Estimated tokens of the messages that stay, without the new summary.
    """

    messages: Sequence[PreviewedMessage]
    first_position: int
    sums: dict[PreviewOutcome, OutcomeSum]
    obstacle: Obstacle | None
    tokens_before: int
    tokens_kept: int


def preview_of(
    next_request: NextRequest, token_budget: TokenBudget, planned: Plan | Obstacle
) -> CompactionPreview:
    """Returns a description of a planned compaction.

    Args:
        next_request: The next model request of the conversation, with its window.
        token_budget: Token budget of the window.
        planned: The plan, or why there is none.
    """
    view, body = next_request.view, next_request.window.messages[1:]
    outcomes = _outcomes(body, planned)
    sizes = view.sizes([message] for message in body)
    by_outcome: dict[PreviewOutcome, list[int]] = {outcome: [] for outcome in PreviewOutcome}
    for outcome, size in zip(outcomes, sizes, strict=True):
        by_outcome[outcome].append(size)
    first = _first_listed(outcomes)
    fixed = next_request.fixed_bytes
    return CompactionPreview(
        messages=[
            PreviewedMessage(message, outcome, token_budget.estimate(size), _excerpt(message))
            for message, outcome, size in list(zip(body, outcomes, sizes, strict=True))[
                first : first + MAX_MESSAGES
            ]
        ],
        first_position=first,
        sums={
            outcome: OutcomeSum(len(chosen), token_budget.estimate(sum(chosen)))
            for outcome, chosen in by_outcome.items()
        },
        obstacle=planned if isinstance(planned, Obstacle) else None,
        tokens_before=token_budget.estimate(fixed + sum(sizes)),
        tokens_kept=token_budget.estimate(fixed + sum(by_outcome[PreviewOutcome.KEPT])),
    )


def _outcomes(body: Sequence[Message], planned: Plan | Obstacle) -> list[PreviewOutcome]:
    if isinstance(planned, Obstacle):
        return [PreviewOutcome.KEPT] * len(body)
    kept_ids = {message.id for message in planned.kept}
    return [_outcome(message, kept_ids) for message in body]


def _outcome(message: Message, kept_ids: AbstractSet[str]) -> PreviewOutcome:
    if message.id in kept_ids:
        return PreviewOutcome.KEPT
    return (
        PreviewOutcome.REPLACED
        if message.role is MessageRole.SUMMARY
        else PreviewOutcome.SUMMARIZED
    )


def _first_listed(outcomes: Sequence[PreviewOutcome]) -> int:
    """Returns the position of the first message that is listed."""
    leaving = [
        index for index, outcome in enumerate(outcomes) if outcome is not PreviewOutcome.KEPT
    ]
    middle = leaving[-1] if leaving else 0
    return max(0, min(middle - MAX_MESSAGES // 2, len(outcomes) - MAX_MESSAGES))


def _excerpt(message: Message) -> str:
    return "" if message.hidden else brief(message, EXCERPT_CHARS)
