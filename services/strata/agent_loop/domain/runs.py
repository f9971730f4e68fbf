"""A run: what is asked for, and how it can end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from strata.agent_loop.domain.approvals import ApprovalResponse
from strata.agent_loop.domain.messages import MessageInput
from strata.agent_loop.domain.taint import Taint
from strata.agent_loop.models.domain import Usage
from strata.shared.errors import Reason

DEFAULT_MAX_STEPS = 50


class StopReason(StrEnum):
    """Why a run ended, by the wire names of the specification (observed §8)."""

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
    CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT = "context_window_overflow_in_system_prompt"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One dispatch of a turn.

    Attributes:
        run_id: The run.
        attempt: Number of the dispatch, from 1.
        agent_id: The agent.
        conversation_id: The conversation.
        inputs: What to say to the agent.
        sender_agent_id: The agent that says it; empty if no agent does.
        approval: The answer to a request for approval, in place of inputs.
        max_steps: Most model calls.
        stream_tokens: Relay the pieces of the reply as they come.
        deadline: When the run must be over; None for no limit of its own.
    """

    run_id: str
    attempt: int
    agent_id: str
    conversation_id: str
    inputs: Sequence[MessageInput] = ()
    approval: ApprovalResponse | None = None
    max_steps: int = DEFAULT_MAX_STEPS
    stream_tokens: bool = False
    sender_agent_id: str = ""
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What went wrong in a run, for the person who runs the agent."""

    reason: Reason
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        taint: Untrusted labels of the context at the end.
    """

    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    failure: RunFailure | None = None
    taint: Taint = ()
