"""Converts context windows and compaction results to protos."""

from __future__ import annotations

from strata.agent_loop.compaction.manual_compaction import CompactionResult
from strata.agent_loop.context.inspection import NextRequest, NextSteps, describe
from strata.agent_loop.context.requests import view_of
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.convert.messages import message_to_proto
from strata.agent_loop.domain.agent.file_limits import file_limits_of
from strata.agent_loop.domain.model.chat import DEFAULT_ENDPOINT_TYPE, ModelSettings
from strata.agent_loop.models.tokens import TokenEstimator, tools_bytes
from strata.api.agent_loop.v1 import agent_service_pb2 as pb

# Used if no model is configured: the most common protocol and the default window.
_NO_MODEL = ModelSettings("", DEFAULT_ENDPOINT_TYPE, "")


def token_budget_of(next_request: NextRequest, tokens: TokenEstimator) -> TokenBudget:
    """Returns the token budget for the window of a request.

    Its ratio of bytes per token comes from the model's last exact count of the window.
    """
    settings = _settings(next_request)
    token_budget = TokenBudget(tokens, settings, next_request.agent.id)
    token_budget.read(
        next_request.counted, next_request.tools, view_of(settings, next_request.agent)
    )
    return token_budget


def window_to_proto(
    next_request: NextRequest, token_budget: TokenBudget, steps: NextSteps
) -> pb.GetContextWindowResponse:
    """Returns the parts of the next model request as a proto.

    Args:
        next_request: The request.
        token_budget: See `token_budget_of`.
        steps: What a turn would do before the request.
    """
    agent, window, toolset = next_request.agent, next_request.window, next_request.tools
    settings = _settings(next_request)
    view = view_of(settings, agent)
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
        compaction_due=steps.compaction,
    )


def _settings(next_request: NextRequest) -> ModelSettings:
    return next_request.bound.settings if next_request.bound is not None else _NO_MODEL


def compaction_result_to_proto(result: CompactionResult) -> pb.CompactConversationResponse:
    """Returns a compaction result as a proto."""
    return pb.CompactConversationResponse(
        summary=message_to_proto(result.summary) if result.summary is not None else None,
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
    )
