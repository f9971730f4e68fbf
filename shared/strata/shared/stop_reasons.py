"""Why runs end."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Why a run ended, by wire name (docs/wire-format.md#stop-reasons)."""

    END_TURN = "end_turn"
    ERROR = "error"
    LLM_API_ERROR = "llm_api_error"
    INVALID_LLM_RESPONSE = "invalid_llm_response"
    INVALID_TOOL_CALL = "invalid_tool_call"
    MAX_STEPS = "max_steps"
    MAX_TOKENS_EXCEEDED = "max_tokens_exceeded"
    NO_TOOL_CALL = "no_tool_call"
    TOOL_RULE = "tool_rule"
    CANCELLED = "cancelled"
    REQUIRES_APPROVAL = "requires_approval"
    NO_PROGRESS = "no_progress"
    """The run repeated the same steps."""
    CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT = "context_window_overflow_in_system_prompt"


_OF_COMPLETED_RUNS = frozenset(
    {
        StopReason.END_TURN,
        StopReason.MAX_STEPS,
        StopReason.TOOL_RULE,
        StopReason.REQUIRES_APPROVAL,
    }
)
FAILURES = frozenset(StopReason) - _OF_COMPLETED_RUNS - {StopReason.CANCELLED}
"""The stop reasons of failed runs (the comments of the proto's RunState)."""
