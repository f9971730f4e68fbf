"""Events of a run, which are streamed to the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from strata.agent_loop.domain.conversation.approvals import ApprovalRequest
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.run.request_digest import RequestDigest
from strata.agent_loop.domain.run.runs import RunOutcome
from strata.agent_loop.domain.tools import ToolResult
from strata.protocol.errors import Reason
from strata.shared.provenance import Taint
from strata.shared.record_fields import replace
from strata.shared.usage import Usage


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The inputs are stored."""

    agent_id: str
    conversation_id: str
    attempt: int
    input_message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """The oldest messages of a voice agent's window, which its memory agent can archive.

    Attributes:
        after_sequence: Sequence before the first message of the window when the turn began.
        until_sequence: Sequence of the last message that can leave; -1 if none can.
        until_message_id: Its id; empty if none can.
        full: The window holds more messages than it may, or a compaction took some out.
    """

    after_sequence: int
    until_sequence: int
    until_message_id: str
    full: bool


@dataclass(frozen=True, slots=True)
class TendedTurn:
    """The agent of the turn has a memory agent. Not relayed to clients.

    Attributes:
        memory_agent_id: The memory agent.
        frequency: It runs after the first turn of the conversation and then every this many
            turns; 0 if the buffer decides.
        buffer: For a voice agent, at the end of its turn.
    """

    memory_agent_id: str
    frequency: int
    buffer: MessageBuffer | None = None


@dataclass(frozen=True, slots=True)
class TranscriptRead:
    """How far a run of a memory agent reads its range. Not relayed to clients.

    Attributes:
        until_sequence: The last sequence that the run reads.
        until_message_id: Id of the message with that sequence, or of an earlier one.
    """

    until_sequence: int
    until_message_id: str


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step begins with a model call, or is resumed.

    Attributes:
        taint: Untrusted labels of its context.
        message_id: Id that the assistant message will have.
    """

    step_id: str
    step: int
    model: str
    taint: Taint = ()
    message_id: str = ""


@dataclass(frozen=True, slots=True)
class StepRestarted:
    """Withdraws the streamed pieces of the step's message; usually the model is asked again.

    Attributes:
        given_up: The step failed: the model is not asked again.
        model: Handle of the model that is asked now, if it is another one.
        failed_model: Handle of the model that could not answer; set with `model`.
        failed_reason: Why it could not answer; set with `model`.
    """

    step_id: str
    step: int
    reason: str
    message_id: str = ""
    given_up: bool = False
    model: str = ""
    failed_model: str = ""
    failed_reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class ModelRequestSent:
    """A request was sent to the model. Not relayed to clients.

    If this process dies before the reply ends, the gateway estimates its tokens from this event.

    Attributes:
        message_id: Id that the message of the reply will have.
        prompt_tokens: Estimated tokens of the prompt.
        bytes_per_token: UTF-8 bytes per token of this model.
        model: Handle of the model.
        digest: Identifies the exact content of the request.
    """

    message_id: str
    prompt_tokens: int
    bytes_per_token: float
    model: str = ""
    digest: RequestDigest | None = None


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    """The tokens of a model call, for the run's total. Not relayed to clients.

    Attributes:
        message_id: Id that the message of the reply will have; a separate id for a summary.
        usage: Tokens of the call; estimated if the reply broke off.
        model: Handle of the model.
    """

    message_id: str
    usage: Usage
    model: str = ""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """The next characters of the reply.

    Attributes:
        message_id: The message.
        text: The characters.
        beside_call: Whether the reply must contain a call, so that the text is a thought beside it.
    """

    message_id: str
    text: str
    beside_call: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """The next characters of the reasoning."""

    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """The next piece of a call. Only a call's first piece has `tool_call_id` and `name`."""

    message_id: str
    index: int
    tool_call_id: str
    name: str
    arguments: str


Piece: TypeAlias = TextPiece | ReasoningPiece | ToolCallPiece


def continues_piece(event: RunEvent, piece: Piece) -> TypeGuard[Piece]:
    """Returns whether an event continues the text or the arguments of the piece before it."""
    if isinstance(piece, ToolCallPiece):
        return (
            isinstance(event, ToolCallPiece)
            and event.message_id == piece.message_id
            and event.index == piece.index
            and not event.tool_call_id
            and not event.name
        )
    return type(event) is type(piece) and event.message_id == piece.message_id


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Returns one piece for pieces of which each continues the one before it."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if isinstance(first, ToolCallPiece):
        arguments = (piece.arguments for piece in pieces if isinstance(piece, ToolCallPiece))
        return replace(first, arguments="".join(arguments))
    texts = (piece.text for piece in pieces if not isinstance(piece, ToolCallPiece))
    return replace(first, text="".join(texts))


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call starts."""

    tool_call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool call has ended."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class MessageStored:
    """A message was stored. A later attempt emits it again with the same id."""

    message: Message


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """The run ends to wait for a decision. A later attempt emits it again with the same id."""

    request: ApprovalRequest


@dataclass(frozen=True, slots=True)
class WindowCompacted:
    """A summary replaced older messages of the window.

    Attributes:
        summary: The stored summary.
        tokens_before: Tokens of the window before the compaction.
        tokens_after: Tokens of the window after it.
    """

    summary: Message
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run has ended. This is the last event."""

    outcome: RunOutcome


RunEvent: TypeAlias = (
    RunStarted
    | StepStarted
    | TendedTurn
    | TranscriptRead
    | StepRestarted
    | ModelRequestSent
    | ReplyReceived
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
