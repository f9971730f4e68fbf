"""Converts context windows and compaction results to protos."""

from __future__ import annotations

from strata.agent_loop.agents.next_requests import NextSteps
from strata.agent_loop.compaction.manual_compaction import CompactionResult
from strata.agent_loop.compaction.plan import Obstacle, Plan
from strata.agent_loop.compaction.preview import (
    CompactionPreview,
    OutcomeSum,
    PreviewedMessage,
    PreviewOutcome,
)
from strata.agent_loop.context.inspection import NextRequest, describe
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.convert.messages import message_to_proto
from strata.agent_loop.domain.agent.file_limits import file_limits_of
from strata.agent_loop.models.tokens import tools_bytes
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.shared.convert.enums import EnumTable
from strata.shared.convert.messages import ROLES

_OBSTACLES = EnumTable(pb.CompactionObstacle, Obstacle)
_OUTCOMES = EnumTable(pb.CompactionOutcome, PreviewOutcome)


def window_to_proto(
    next_request: NextRequest, token_budget: TokenBudget, steps: NextSteps
) -> pb.GetContextWindowResponse:
    """Returns the parts of the next model request as a proto.

    Args:
        next_request: The request.
        token_budget: See `NextRequest.token_budget`.
        steps: The steps of a turn before the request.
    """
    agent, window, toolset = next_request.agent, next_request.window, next_request.tools
    settings, view = next_request.settings, next_request.view
    parts = describe(window, toolset, view, token_budget.estimate)
    size = view.size(window.messages) + tools_bytes(toolset.schemas)
    limits = file_limits_of(agent, settings.context_window)
    return pb.GetContextWindowResponse(
        context_window=settings.context_window,
        used_tokens=token_budget.estimate(size),
        parts=[
            pb.ContextWindowPart(
                name=part.name,
                tokens=part.tokens,
                characters=part.characters,
                count=part.count,
            )
            for part in parts
        ],
        system_message=window.messages[0].text if window.messages else "",
        estimated=True,
        compaction_tokens=token_budget.usable_tokens,
        max_files_open=limits.max_open,
        per_file_view_window_char_limit=limits.view_chars,
        files_to_close=steps.files_to_close,
        compaction_due=isinstance(steps.compaction, Plan),
        tools_left_out=toolset.left_out,
    )


def compaction_result_to_proto(result: CompactionResult) -> pb.CompactConversationResponse:
    """Returns a compaction result as a proto."""
    return pb.CompactConversationResponse(
        summary=message_to_proto(result.summary) if result.summary is not None else None,
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
    )


def preview_to_proto(preview: CompactionPreview, mode: str) -> pb.PreviewCompactionResponse:
    """Returns the preview of a compaction as a proto.

    Args:
        preview: The preview.
        mode: The mode of the compaction.
    """
    response = pb.PreviewCompactionResponse(
        messages=map(_previewed_to_proto, preview.messages),
        first_position=preview.first_position,
        kept=_sum_to_proto(preview.sums[PreviewOutcome.KEPT]),
        summarized=_sum_to_proto(preview.sums[PreviewOutcome.SUMMARIZED]),
        replaced=_sum_to_proto(preview.sums[PreviewOutcome.REPLACED]),
        mode=mode,
        tokens_before=preview.tokens_before,
        tokens_kept=preview.tokens_kept,
    )
    if preview.obstacle is not None:
        response.obstacle = _OBSTACLES.to_proto[preview.obstacle]
    return response


def _previewed_to_proto(previewed: PreviewedMessage) -> pb.PreviewedMessage:
    message = previewed.message
    out = pb.PreviewedMessage(
        message_id=message.id,
        role=ROLES.to_proto[message.role],
        sequence=message.sequence,
        outcome=_OUTCOMES.to_proto[previewed.outcome],
        tokens=previewed.tokens,
        pinned=message.pinned,
        excerpt=previewed.excerpt,
    )
    if message.create_time is not None:
        out.create_time.FromDatetime(message.create_time)
    return out


def _sum_to_proto(outcome_sum: OutcomeSum) -> pb.PreviewedSum:
    return pb.PreviewedSum(message_count=outcome_sum.message_count, tokens=outcome_sum.tokens)
