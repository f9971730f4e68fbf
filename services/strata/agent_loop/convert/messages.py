"""Converts messages and their parts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from strata.agent_loop.domain.conversation.approvals import (
    ApprovalBinding,
    ApprovalRequest,
    ApprovalResponse,
    Decision,
)
from strata.agent_loop.domain.conversation.messages import (
    Message,
    MessagePart,
    NestedCall,
    OpaquePart,
    SummaryPart,
    ToolReturn,
    Window,
)
from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.agent_loop.domain.model.chat import (
    ImageDetail,
    ImagePart,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from strata.api.common.v1 import message_pb2 as pb
from strata.api.common.v1 import tool_pb2
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.shared.convert.enums import EnumTable
from strata.shared.convert.messages import (
    PROVENANCES,
    ROLES,
    STATUSES,
    labels_from_proto,
    labels_to_proto,
)
from strata.shared.convert.records import RecordTable
from strata.shared.convert.usage import usage_from_proto, usage_to_proto
from strata.shared.messages import ToolStatus

_DETAILS = EnumTable(pb.ImageDetail, ImageDetail, unspecified=ImageDetail.AUTO)
_BINDINGS = RecordTable(ApprovalBinding, pb.ApprovalBinding)
_SUMMARIES = RecordTable(SummaryPart, pb.SummaryPart)


def message_from_proto(wire: pb.Message) -> Message:
    """Returns the domain form of a stored message."""
    return Message(
        id=wire.id,
        role=ROLES.from_proto[wire.role],
        parts=tuple(part_from_proto(part) for part in wire.parts),
        conversation_id=wire.conversation_id,
        agent_id=wire.agent_id,
        sequence=wire.sequence,
        name=wire.name,
        run_id=wire.run_id,
        step_id=wire.step_id,
        group_id=wire.group_id,
        model=wire.model,
        usage=usage_from_proto(wire.usage) if wire.HasField("usage") else None,
        provenance=labels_from_proto(wire.provenance),
        pinned=wire.pinned,
        client_message_id=wire.client_message_id,
        create_time=_moment(wire),
        copied=bool(wire.copied_from_id),
    )


def message_to_proto(message: Message) -> pb.Message:
    """Returns a message as a proto."""
    wire = pb.Message(
        id=message.id,
        conversation_id=message.conversation_id,
        agent_id=message.agent_id,
        sequence=message.sequence,
        role=ROLES.to_proto[message.role],
        parts=[part_to_proto(part) for part in message.parts],
        name=message.name,
        run_id=message.run_id,
        step_id=message.step_id,
        group_id=message.group_id,
        model=message.model,
        provenance=labels_to_proto(message.provenance),
        pinned=message.pinned,
        client_message_id=message.client_message_id,
    )
    if message.usage is not None:
        wire.usage.CopyFrom(usage_to_proto(message.usage))
    if message.create_time is not None:
        wire.create_time.FromDatetime(message.create_time)
    return wire


def messages_from_proto(wires: Iterable[pb.Message]) -> tuple[Message, ...]:
    """Returns the domain form of stored messages."""
    return tuple(message_from_proto(wire) for wire in wires)


def window_from_proto(wire: window_pb.Window) -> Window:
    """Returns the domain form of a window."""
    return Window(
        conversation_id=wire.conversation_id,
        agent_id=wire.agent_id,
        revision=wire.revision,
        messages=messages_from_proto(wire.messages),
        message_count=wire.message_count,
        metadata_stale=wire.metadata_stale,
    )


def part_from_proto(wire: pb.Part) -> MessagePart:
    """Returns the domain form of a part; an unknown part is kept unread."""
    match wire.WhichOneof("content"):
        case "text":
            return TextPart(wire.text.text, wire.text.beside_call)
        case "reasoning":
            redacted = wire.reasoning.redacted.decode("utf-8", "replace")
            return ReasoningPart(wire.reasoning.text, wire.reasoning.signature, redacted)
        case "image":
            return image_from_proto(wire.image)
        case "tool_call":
            return _call_from_proto(wire.tool_call)
        case "tool_return":
            return tool_return_from_proto(wire.tool_return)
        case "approval_request":
            return approval_request_from_proto(wire.approval_request)
        case "approval_response":
            return approval_response_from_proto(wire.approval_response)
        case "summary":
            return _SUMMARIES.from_proto(wire.summary)
        case _:
            return OpaquePart(wire.SerializeToString())


def part_to_proto(part: MessagePart) -> pb.Part:
    """Returns a part as a proto."""
    match part:
        case TextPart():
            return pb.Part(text=pb.TextPart(text=part.text, beside_call=part.beside_call))
        case ReasoningPart():
            reasoning = pb.ReasoningPart(
                text=part.text, signature=part.signature, redacted=part.redacted.encode()
            )
            return pb.Part(reasoning=reasoning)
        case ImagePart():
            return pb.Part(image=image_to_proto(part))
        case ToolCall():
            return pb.Part(tool_call=_call_to_proto(part))
        case ToolReturn():
            return pb.Part(tool_return=tool_return_to_proto(part))
        case ApprovalRequest():
            return pb.Part(approval_request=approval_request_to_proto(part))
        case ApprovalResponse():
            return pb.Part(approval_response=_response_to_proto(part))
        case SummaryPart():
            return pb.Part(summary=_SUMMARIES.to_proto(part))
        case OpaquePart():
            return pb.Part.FromString(part.data)


def approval_request_from_proto(wire: pb.ApprovalRequestPart) -> ApprovalRequest:
    """Returns the domain form of a request for approval."""
    expires = wire.expire_time.ToDatetime(tzinfo=UTC) if wire.HasField("expire_time") else None
    return ApprovalRequest(
        wire.approval_id,
        tuple(_call_from_proto(call) for call in wire.tool_calls),
        tuple(_call_from_proto(call) for call in wire.waiting_calls),
        _BINDINGS.tuple_from_proto(wire.bindings),
        expires,
        tuple(
            _source_from_proto(source)
            for source in wire.taint
            if source.label in PROVENANCES.from_proto
        ),
        wire.default_decision == tool_pb2.DEFAULT_DECISION_APPROVE,
    )


def approval_request_to_proto(part: ApprovalRequest) -> pb.ApprovalRequestPart:
    """Returns a request for approval as a proto."""
    wire = pb.ApprovalRequestPart(
        approval_id=part.approval_id,
        tool_calls=[_call_to_proto(call) for call in part.tool_calls],
        waiting_calls=[_call_to_proto(call) for call in part.waiting_calls],
        bindings=_BINDINGS.list_to_proto(part.bindings),
        taint=[_source_to_proto(source) for source in part.taint],
    )
    if part.default_approve:
        wire.default_decision = tool_pb2.DEFAULT_DECISION_APPROVE
    if part.expire_time is not None:
        wire.expire_time.FromDatetime(part.expire_time)
    return wire


def approval_response_from_proto(wire: pb.ApprovalResponsePart) -> ApprovalResponse:
    """Returns the domain form of the answer to a request."""
    return ApprovalResponse(
        wire.approval_id,
        tuple(
            Decision(
                decision.tool_call_id,
                decision.approve,
                decision.reason,
                decision.client_return if decision.HasField("client_return") else None,
                decision.client_status == pb.TOOL_STATUS_FAILED,
                decision.arguments_hash,
                labels_from_proto(decision.client_taint),
            )
            for decision in wire.decisions
        ),
        wire.by_default,
        wire.answered_by,
    )


def _source_from_proto(wire: pb.TaintSource) -> TaintSource:
    return TaintSource(
        PROVENANCES.from_proto[wire.label],
        wire.message_id,
        wire.tool_name,
        wire.tool_call_id,
        wire.block_label,
        wire.archival_tag,
    )


def _source_to_proto(source: TaintSource) -> pb.TaintSource:
    return pb.TaintSource(
        label=PROVENANCES.to_proto[source.label],
        message_id=source.message_id,
        tool_name=source.tool_name,
        tool_call_id=source.tool_call_id,
        block_label=source.block_label,
        archival_tag=source.archival_tag,
    )


def _response_to_proto(part: ApprovalResponse) -> pb.ApprovalResponsePart:
    return pb.ApprovalResponsePart(
        approval_id=part.approval_id,
        decisions=[
            pb.ApprovalDecision(
                tool_call_id=decision.tool_call_id,
                approve=decision.approve,
                reason=decision.reason,
                client_return=decision.client_return,
                client_status=(
                    pb.TOOL_STATUS_FAILED if decision.client_failed else pb.TOOL_STATUS_UNSPECIFIED
                ),
                arguments_hash=decision.arguments_hash,
                client_taint=labels_to_proto(decision.client_taint),
            )
            for decision in part.decisions
        ],
        by_default=part.by_default,
        answered_by=part.answered_by,
    )


def _call_from_proto(wire: pb.ToolCallPart) -> ToolCall:
    heartbeat = wire.request_heartbeat if wire.HasField("request_heartbeat") else None
    return ToolCall(wire.tool_call_id, wire.name, wire.arguments, heartbeat)


def _call_to_proto(call: ToolCall) -> pb.ToolCallPart:
    return pb.ToolCallPart(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        request_heartbeat=call.request_heartbeat,
    )


def image_from_proto(wire: pb.ImagePart) -> ImagePart:
    """Returns the domain form of an image."""
    return ImagePart(
        wire.media_type,
        wire.image_id,
        wire.width,
        wire.height,
        wire.size_bytes,
        wire.alt_text,
        _DETAILS.from_proto.get(wire.detail, ImageDetail.AUTO),
        wire.url or wire.source_url,
        wire.data,
    )


def image_to_proto(image: ImagePart) -> pb.ImagePart:
    """Returns an image as a proto, with its bytes if present."""
    wire = pb.ImagePart(
        media_type=image.media_type,
        source_url=image.url if image.image_id else "",
        image_id=image.image_id,
        width=image.width,
        height=image.height,
        size_bytes=image.size_bytes,
        alt_text=image.alt_text,
        detail=_DETAILS.to_proto[image.detail],
    )
    if image.data:
        wire.data = image.data
    elif image.url and not image.image_id:
        wire.url = image.url
    return wire


def tool_return_from_proto(wire: pb.ToolReturnPart) -> ToolReturn:
    """Returns the domain form of a tool's return."""
    return ToolReturn(
        tool_call_id=wire.tool_call_id,
        name=wire.name,
        status=STATUSES.from_proto.get(wire.status, ToolStatus.UNKNOWN),
        content=wire.content,
        stdout=tuple(wire.stdout),
        stderr=tuple(wire.stderr),
        provenance=PROVENANCES.from_proto.get(wire.provenance),
        taint=labels_from_proto(wire.taint),
        nested=tuple(
            NestedCall(
                call.tool_call_id,
                call.name,
                call.arguments,
                STATUSES.from_proto.get(call.status, ToolStatus.UNKNOWN),
                call.refused,
            )
            for call in wire.nested_calls
        ),
        returned_by=wire.returned_by,
        images=tuple(image_from_proto(image) for image in wire.images),
    )


def tool_return_to_proto(part: ToolReturn) -> pb.ToolReturnPart:
    """Returns a tool's return as a proto."""
    label = pb.PROVENANCE_UNSPECIFIED
    if part.provenance is not None:
        label = PROVENANCES.to_proto[part.provenance]
    return pb.ToolReturnPart(
        tool_call_id=part.tool_call_id,
        name=part.name,
        status=STATUSES.to_proto[part.status],
        content=part.content,
        stdout=part.stdout,
        stderr=part.stderr,
        provenance=label,
        taint=labels_to_proto(part.taint),
        nested_calls=[
            pb.NestedToolCall(
                tool_call_id=call.id,
                name=call.name,
                arguments=call.arguments,
                status=STATUSES.to_proto[call.status],
                refused=call.refused,
            )
            for call in part.nested
        ],
        returned_by=part.returned_by,
        images=[image_to_proto(image) for image in part.images],
    )


def _moment(wire: pb.Message) -> datetime | None:
    return wire.create_time.ToDatetime(tzinfo=UTC) if wire.HasField("create_time") else None
