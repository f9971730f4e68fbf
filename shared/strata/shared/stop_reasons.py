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
