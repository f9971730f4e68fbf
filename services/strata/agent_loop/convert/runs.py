"""Converts run requests from protos, and run events to protos."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from strata.agent_loop.convert.checks import refuse
from strata.agent_loop.convert.messages import (
    approval_request_to_proto,
    approval_response_from_proto,
    message_to_proto,
    part_from_proto,
    tool_return_to_proto,
)
from strata.agent_loop.convert.response_formats import response_format_from_proto
from strata.agent_loop.domain.agent.groups import GroupMember, GroupTool
from strata.agent_loop.domain.conversation.messages import MessageInput, without_bytes
from strata.agent_loop.domain.run.events import (
    ApprovalRequested,
    MessageStored,
    ModelRequestSent,
    ReasoningPiece,
    ReplyReceived,
    RunEvent,
    RunFinished,
    RunStarted,
    StepRestarted,
    StepStarted,
    TendedTurn,
    TextPiece,
    ToolCallPiece,
    ToolFinished,
    ToolStarted,
    TranscriptRead,
    WindowCompacted,
)
from strata.agent_loop.domain.run.request_digest import RequestDigest
from strata.agent_loop.domain.run.runs import (
    DEFAULT_MAX_STEPS,
    DocumentRange,
    RunOutcome,
    RunRequest,
    TranscriptRange,
)
from strata.agent_loop.domain.tools import ToolResult
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as pb
from strata.protocol.errors import FieldViolation, invalid_field
from strata.shared.convert.memory_edits import edits_to_proto
from strata.shared.convert.messages import labels_from_proto, labels_to_proto
from strata.shared.convert.runs import STOP_REASONS
from strata.shared.convert.usage import usage_to_proto
from strata.shared.ids import check_id
from strata.shared.json_text import encodable_text
from strata.shared.message_inputs import content_violations
from strata.shared.messages import MessageRole
from strata.shared.provenance import taint_of
from strata.shared.response_formats import response_format_violations
from strata.shared.tool_catalogue import GROUP_TOOLS

_INPUT_ROLES = {
    message_pb2.ROLE_UNSPECIFIED: MessageRole.USER,
    message_pb2.ROLE_USER: MessageRole.USER,
    message_pb2.ROLE_SYSTEM: MessageRole.SYSTEM,
    message_pb2.ROLE_ASSISTANT: MessageRole.ASSISTANT,
}


def run_from_proto(request: turn_pb.ExecuteRunRequest) -> RunRequest:
    """Returns the run to execute.

    Raises:
        InvalidArgumentError: Fields are wrong; the violations name all of them.
    """
    check_id(request.run_id, "run", field="run_id")
    check_id(request.agent_id, "agent", field="agent_id")
    check_id(request.conversation_id, "conversation", field="conversation_id")
    violations = [
        FieldViolation(name, "must be positive")
        for name, value in (("attempt", request.attempt - 1), ("max_steps", request.max_steps))
        if value < 0
    ]
    if request.HasField("approval") and request.messages:
        violations.append(FieldViolation("approval", "must not be sent together with messages"))
    if request.HasField("transcript") and (request.messages or request.HasField("approval")):
        violations.append(FieldViolation("transcript", "must be sent alone"))
    if request.HasField("document") and (
        request.messages or request.HasField("approval") or request.HasField("transcript")
    ):
        violations.append(FieldViolation("document", "must be sent alone"))
    violations.extend(content_violations("messages", request.messages))
    violations.extend(response_format_violations(request))
    refuse(violations)
    inputs = [
        input_from_proto(wire, f"messages[{index}]", violations)
        for index, wire in enumerate(request.messages)
    ]
    refuse(violations)
    return RunRequest(
        run_id=request.run_id,
        attempt=request.attempt,
        agent_id=request.agent_id,
        conversation_id=request.conversation_id,
        sender_agent_id=request.sender_agent_id,
        inputs=inputs,
        approval=(
            approval_response_from_proto(request.approval) if request.HasField("approval") else None
        ),
        transcript=_transcript(request) if request.HasField("transcript") else None,
        document=_document(request) if request.HasField("document") else None,
        max_steps=request.max_steps or DEFAULT_MAX_STEPS,
        stream_tokens=request.stream_tokens,
        cancelled=request.cancel,
        remaining_s=_remaining_s(request),
        senders=tuple(request.senders),
        group_id=request.group_id,
        record_only=request.record_only,
        response_format=(
            response_format_from_proto(request.response_format)
            if request.HasField("response_format")
            else None
        ),
        group_tool=(
            _group_tool_from_proto(request.group_tool) if request.HasField("group_tool") else None
        ),
    )


def input_from_proto(
    wire: message_pb2.MessageInput, field: str, violations: list[FieldViolation]
) -> MessageInput:
    """Returns the domain form of an input; adds its violations to `violations`."""
    role = _INPUT_ROLES.get(wire.role)
    if role is None:
        violations.append(FieldViolation(f"{field}.role", "must be USER, SYSTEM or ASSISTANT"))
    labels = labels_from_proto(wire.taint)
    taint = taint_of(labels)
    if len(labels) != len(wire.taint) or not set(labels).issubset(taint):
        violations.append(FieldViolation(f"{field}.taint", "must contain only WEB and MCP"))
    return MessageInput(
        role or MessageRole.USER,
        tuple(part_from_proto(part) for part in wire.parts),
        wire.name,
        wire.client_message_id,
        taint,
    )


def response_to_proto(event: RunEvent, run_id: str, now: datetime) -> turn_pb.ExecuteRunResponse:
    """Returns the response that the gateway gets for an event of the turn."""
    if isinstance(event, ReplyReceived):
        reply = turn_pb.ReplyReceived(
            message_id=event.message_id, usage=usage_to_proto(event.usage), model=event.model
        )
        return turn_pb.ExecuteRunResponse(reply=reply)
    if isinstance(event, ModelRequestSent):
        model_request = turn_pb.ModelRequestSent(
            message_id=event.message_id,
            prompt_tokens=event.prompt_tokens,
            bytes_per_token=event.bytes_per_token,
            model=event.model,
            digest=None if event.digest is None else digest_to_proto(event.digest),
        )
        return turn_pb.ExecuteRunResponse(request=model_request)
    if isinstance(event, TendedTurn):
        tended = turn_pb.TendedTurn(
            memory_agent_id=event.memory_agent_id, frequency=event.frequency
        )
        if event.buffer is not None:
            tended.message_buffer.CopyFrom(turn_pb.MessageBuffer(**asdict(event.buffer)))
        return turn_pb.ExecuteRunResponse(tended=tended)
    if isinstance(event, TranscriptRead):
        transcript_read = turn_pb.TranscriptRead(
            until_sequence=event.until_sequence, until_message_id=event.until_message_id
        )
        return turn_pb.ExecuteRunResponse(transcript_read=transcript_read)
    return turn_pb.ExecuteRunResponse(event=event_to_proto(event, run_id, now))


def digest_to_proto(digest: RequestDigest) -> pb.RequestDigest:
    """Returns a request digest as a proto."""
    change = digest.change
    return pb.RequestDigest(
        system=digest.system,
        options=digest.options,
        messages=digest.messages,
        window=digest.window,
        bytes_per_token=digest.bytes_per_token,
        system_change=None
        if change is None
        else pb.SystemChange(
            before=change.before,
            prefix_chars=change.prefix_chars,
            suffix_chars=change.suffix_chars,
            removed=encodable_text(change.removed),
        ),
    )


def event_to_proto(event: RunEvent, run_id: str, now: datetime) -> pb.RunEvent:
    """Returns an event as a proto, without a sequence."""
    wire = pb.RunEvent(run_id=run_id)
    wire.create_time.FromDatetime(now)
    match event:
        case TextPiece() | ReasoningPiece() | ToolCallPiece():
            _write_piece(event, wire)
        case RunStarted():
            wire.run_started.CopyFrom(
                pb.RunStarted(
                    agent_id=event.agent_id,
                    conversation_id=event.conversation_id,
                    attempt=event.attempt,
                    input_message_ids=event.input_message_ids,
                )
            )
        case StepStarted(step_id, step, model, taint, message_id):
            wire.step_started.CopyFrom(
                pb.StepStarted(
                    step_id=step_id,
                    step=step,
                    model=model,
                    taint=labels_to_proto(taint),
                    message_id=message_id,
                )
            )
        case StepRestarted():
            wire.step_restarted.CopyFrom(_restarted(event))
        case ToolStarted(call_id, name, arguments):
            wire.tool_started.CopyFrom(
                pb.ToolStarted(tool_call_id=call_id, name=name, arguments=arguments)
            )
        case ToolFinished(result):
            wire.tool_finished.CopyFrom(_finished(result))
        case MessageStored(message):
            wire.message_stored.CopyFrom(pb.MessageStored(message=message_to_proto(message)))
        case ApprovalRequested(asked):
            wire.approval_requested.CopyFrom(
                pb.ApprovalRequested(approval=approval_request_to_proto(asked))
            )
        case WindowCompacted(summary, before, after):
            wire.window_compacted.CopyFrom(
                pb.WindowCompacted(
                    summary=message_to_proto(summary), tokens_before=before, tokens_after=after
                )
            )
        case RunFinished(outcome):
            wire.run_finished.CopyFrom(_outcome(outcome))
    return wire


def _restarted(event: StepRestarted) -> pb.StepRestarted:
    return pb.StepRestarted(
        step_id=event.step_id,
        step=event.step,
        reason=event.reason,
        message_id=event.message_id,
        given_up=event.given_up,
        model=event.model,
        failed_model=event.failed_model,
        failed_reason=event.failed_reason.value if event.failed_reason is not None else "",
    )


def _write_piece(event: TextPiece | ReasoningPiece | ToolCallPiece, wire: pb.RunEvent) -> None:
    match event:
        case TextPiece(message_id, text, beside_call):
            delta = pb.TextDelta(message_id=message_id, text=text, beside_call=beside_call)
            wire.text_delta.CopyFrom(delta)
        case ReasoningPiece(message_id, text):
            wire.reasoning_delta.CopyFrom(pb.ReasoningDelta(message_id=message_id, text=text))
        case ToolCallPiece():
            wire.tool_call_delta.CopyFrom(
                pb.ToolCallDelta(
                    message_id=event.message_id,
                    index=event.index,
                    tool_call_id=event.tool_call_id,
                    name=event.name,
                    arguments=event.arguments,
                )
            )


def _finished(result: ToolResult) -> pb.ToolFinished:
    return pb.ToolFinished(
        tool_return=tool_return_to_proto(without_bytes(result.tool_return)),
        duration_ms=result.duration_ms,
        memory_edits=edits_to_proto(result.memory_edits),
    )


def _outcome(outcome: RunOutcome) -> pb.RunFinished:
    wire = pb.RunFinished(
        stop_reason=STOP_REASONS.to_proto[outcome.stop_reason],
        usage=usage_to_proto(outcome.usage),
        step_count=outcome.step_count,
        taint=labels_to_proto(outcome.taint),
    )
    if outcome.failure is not None:
        wire.error.reason = outcome.failure.reason.value
        wire.error.message = outcome.failure.message
        wire.error.retryable = outcome.failure.retryable
    return wire


def _document(request: turn_pb.ExecuteRunRequest) -> DocumentRange:
    wire = request.document
    check_id(wire.agent_id, "agent", field="document.agent_id")
    check_id(wire.file_id, "file", field="document.file_id")
    return DocumentRange(
        wire.agent_id, wire.file_id, wire.after_line, wire.until_line, wire.content_hash
    )


def _transcript(request: turn_pb.ExecuteRunRequest) -> TranscriptRange:
    wire = request.transcript
    check_id(wire.agent_id, "agent", field="transcript.agent_id")
    check_id(wire.conversation_id, "conversation", field="transcript.conversation_id")
    return TranscriptRange(
        wire.agent_id, wire.conversation_id, wire.after_sequence, wire.until_sequence
    )


def _remaining_s(request: turn_pb.ExecuteRunRequest) -> float | None:
    if not request.HasField("remaining_time"):
        return None
    return request.remaining_time.ToTimedelta().total_seconds()


def _group_tool_from_proto(wire: turn_pb.GroupTool) -> GroupTool:
    """Returns the tool that an agent is offered in a run of its group.

    Raises:
        InvalidArgumentError: It is not a group tool, or has no members.
    """
    if wire.name not in GROUP_TOOLS:
        problem = f"must be one of: {', '.join(sorted(GROUP_TOOLS))}"
        raise invalid_field("group_tool.name", problem)
    if not wire.members:
        raise invalid_field("group_tool.members", "must not be empty")
    return GroupTool(
        wire.name,
        tuple(
            GroupMember(member.agent_id, member.name, member.description) for member in wire.members
        ),
    )
