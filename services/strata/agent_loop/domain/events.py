"""What happens in a run, as it is told to the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from strata.agent_loop.domain.approvals import ApprovalRequest
from strata.agent_loop.domain.messages import Message
from strata.agent_loop.domain.runs import Outcome
from strata.agent_loop.domain.taint import Taint
from strata.agent_loop.domain.tools import ToolResult


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The inputs are stored."""

    agent_id: str
    conversation_id: str
    attempt: int
    input_message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A model call begins, or the step of one is resumed.

    Attributes:
        taint: Untrusted labels of its context.
    """

    step_id: str
    step: int
    model: str
    taint: Taint = ()


@dataclass(frozen=True, slots=True)
class StepRestarted:
    """The model is asked again; what was streamed of this step is void."""

    step_id: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The next characters of the reply."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """The next characters of the reasoning."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """The next piece of a call. `tool_call_id` and `name` are set in a call's first piece."""

    message_id: str
    index: int
    tool_call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool starts."""

    tool_call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool has ended."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class MessageStored:
    """A message was stored. Told again by a later attempt: the id tells that it is the same."""

    message: Message


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """The run ends until somebody decides. Told again by a later attempt: the id is the same."""

    request: ApprovalRequest


@dataclass(frozen=True, slots=True)
class WindowCompacted:
    """A summary took the place of older messages.

    Attributes:
        summary: The summary, as stored.
        tokens_before: Tokens of the window before.
        tokens_after: Tokens of it now.
    """

    summary: Message
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The one terminal event."""

    outcome: Outcome


RunEvent: TypeAlias = (
    RunStarted
    | StepStarted
    | StepRestarted
    | TextPiece
    | ReasoningPiece
    | ToolCallPiece
    | ToolStarted
    | ToolFinished
    | MessageStored
    | ApprovalRequested
    | WindowCompacted
    | RunFinished
)
