"""Converts messages and windows between protos and the domain, and validates requests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import usage_pb2
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.protocol.images import ImageError, is_image_id
from strata.recall.convert.parts import (
    part_from_json,
    parts_to_json,
    provenance_from_text,
    provenance_to_text,
)
from strata.recall.domain.messages import (
    Compaction,
    Message,
    MessageFilter,
    Role,
    Step,
    Window,
)
from strata.recall.domain.pairs import pair_violations
from strata.shared.ids import check_id

_USAGE_FIELDS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "estimated",
)
_ROLES = {
    common.ROLE_SYSTEM: Role.SYSTEM,
    common.ROLE_USER: Role.USER,
    common.ROLE_ASSISTANT: Role.ASSISTANT,
    common.ROLE_TOOL: Role.TOOL,
    common.ROLE_APPROVAL: Role.APPROVAL,
    common.ROLE_SUMMARY: Role.SUMMARY,
}
_ROLES_BACK = {role: value for value, role in _ROLES.items()}


def message_to_proto(message: Message) -> common.Message:
    """Returns a stored message as a proto."""
    wire = common.Message(
        id=message.id,
        conversation_id=message.conversation_id,
        agent_id=message.agent_id,
        sequence=message.sequence,
        role=_ROLES_BACK[message.role],
        parts=[part_from_json(part) for part in message.parts],
        name=message.name,
        run_id=message.run_id,
        step_id=message.step_id,
        group_id=message.group_id,
        model=message.model,
        provenance=[provenance_from_text(label) for label in message.provenance],
        pinned=message.pinned,
        client_message_id=message.client_message_id,
        copied_from_id=message.copied_from_id,
    )
    wire.create_time.FromDatetime(message.create_time)
    if message.usage is not None:
        wire.usage.CopyFrom(usage_pb2.Usage(**message.usage))
    return wire


def messages_to_proto(messages: Iterable[Message]) -> list[common.Message]:
    """Returns messages as protos."""
    return [message_to_proto(message) for message in messages]


def window_to_proto(window: Window) -> window_pb.Window:
    """Returns a window as a proto."""
    return window_pb.Window(
        conversation_id=window.conversation_id,
        agent_id=window.agent_id,
        revision=window.revision,
        messages=messages_to_proto(window.messages),
        message_count=window.message_count,
        metadata_stale=window.metadata_stale,
    )


def time_or_none(value: Timestamp, present: bool, field: str) -> datetime | None:
    """Returns a time in UTC; None if the field is not set.

    Raises:
        InvalidArgumentError: The time is not between the years 1 and 9999.
    """
    if not present:
        return None
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        refuse([FieldViolation(field, "is not a time between the years 1 and 9999")])
        raise


def to_message(wire: common.Message, now: datetime, step: int = 0) -> Message:
    """Returns a message to store; NUL characters are replaced.

    Raises:
        ImageError: The bytes of an image are not an accepted image.
    """
    parts, images = parts_to_json(wire.parts)
    usage: dict[str, Any] | None = None
    if wire.HasField("usage"):
        usage = {name: getattr(wire.usage, name) for name in _USAGE_FIELDS}
    created = time_or_none(wire.create_time, wire.HasField("create_time"), "create_time")
    return Message(
        id=wire.id,
        role=_ROLES[wire.role],
        parts=tuple(_without_nul(part) for part in parts),
        create_time=created or now,
        name=wire.name,
        run_id=wire.run_id,
        step_id=wire.step_id,
        step=step,
        group_id=wire.group_id,
        model=wire.model,
        usage=usage,
        provenance=tuple(provenance_to_text(label) for label in wire.provenance),
        pinned=wire.pinned,
        client_message_id=wire.client_message_id,
        images=images,
    )


def to_messages(
    wires: Iterable[common.Message], field: str, now: datetime, *, step: int = 0, run_id: str = ""
) -> tuple[Message, ...]:
    """Returns messages to store.

    Raises:
        InvalidArgumentError: An id or a role is wrong, a message is of another run, or an image
            is not accepted.
    """
    wires = list(wires)
    violations = []
    for index, wire in enumerate(wires):
        place = f"{field}[{index}]"
        if wire.role not in _ROLES:
            violations.append(FieldViolation(f"{place}.role", "must be set"))
        if not wire.id.startswith("message-"):
            violations.append(FieldViolation(f"{place}.id", "must be a message id"))
        if run_id and wire.run_id != run_id:
            violations.append(FieldViolation(f"{place}.run_id", "must be the run of the request"))
    refuse(violations)
    messages = []
    for index, wire in enumerate(wires):
        try:
            messages.append(to_message(wire, now, step))
        except ImageError as error:
            refuse([FieldViolation(f"{field}[{index}].parts", f"hold an image that {error}")])
    return tuple(messages)


def to_open(request: window_pb.OpenWindowRequest, now: datetime) -> tuple[Message, ...]:
    """Returns the first messages of a window.

    Raises:
        InvalidArgumentError: The ids are wrong or the first message is not the system message.
    """
    check_id(request.conversation_id, "conversation", field="conversation_id")
    check_id(request.agent_id, "agent", field="agent_id")
    messages = to_messages(request.messages, "messages", now)
    violations = pair_violations(messages)
    if not messages or messages[0].role is not Role.SYSTEM:
        violations.append(FieldViolation("messages", "must begin with the system message"))
    refuse(violations)
    return messages


def to_step(request: window_pb.CommitStepRequest, now: datetime) -> Step:
    """Returns the step to commit.

    Raises:
        InvalidArgumentError: Ids or numbers are wrong, or a call and its return are separated.
    """
    check_id(request.conversation_id, "conversation", field="conversation_id")
    check_id(request.agent_id, "agent", field="agent_id")
    check_id(request.run_id, "run", field="run_id")
    messages = to_messages(
        request.messages, "messages", now, step=request.step, run_id=request.run_id
    )
    violations = pair_violations(messages)
    for name in ("attempt", "step"):
        if getattr(request, name) < 1:
            violations.append(FieldViolation(name, "must be at least 1"))
    if not messages:
        violations.append(FieldViolation("messages", "must not be empty"))
    if request.evict_count < 0:
        violations.append(FieldViolation("evict_count", "must not be negative"))
    refuse(violations)
    return Step(
        conversation_id=request.conversation_id,
        agent_id=request.agent_id,
        run_id=request.run_id,
        attempt=request.attempt,
        step=request.step,
        messages=messages,
        system_text=request.system_text if request.HasField("system_text") else None,
        metadata_stale=request.metadata_stale if request.HasField("metadata_stale") else None,
        evict_count=request.evict_count,
    )


def to_compaction(request: window_pb.CompactWindowRequest, now: datetime) -> Compaction:
    """Returns the compaction of a request.

    Raises:
        InvalidArgumentError: An id is wrong or there is no summary.
    """
    check_id(request.conversation_id, "conversation", field="conversation_id")
    if request.run_id:
        check_id(request.run_id, "run", field="run_id")
    summary = to_messages([request.summary], "summary", now)[0]
    if summary.role is not Role.SUMMARY:
        refuse([FieldViolation("summary.role", "must be ROLE_SUMMARY")])
    return Compaction(
        conversation_id=request.conversation_id,
        run_id=request.run_id,
        attempt=request.attempt,
        expected_revision=request.expected_revision,
        summary=summary,
        kept_ids=tuple(request.kept_message_ids),
    )


def to_filter(request: message_pb.ListMessagesRequest) -> MessageFilter:
    """Returns the filter of a ListMessages request.

    Raises:
        InvalidArgumentError: An id is wrong, or not exactly one of agent and conversation is set.
    """
    violations: list[FieldViolation] = []
    if bool(request.conversation_id) == bool(request.agent_id):
        violations.append(
            FieldViolation("conversation_id", "set exactly one of conversation_id and agent_id")
        )
    if request.order not in message_pb.ListOrder.values():
        violations.append(FieldViolation("order", "is not a known order"))
    ends = {"from_message_id": request.from_message_id, "to_message_id": request.to_message_id}
    if not request.conversation_id:
        violations += [
            FieldViolation(name, "needs conversation_id") for name, end in ends.items() if end
        ]
        violations += [
            FieldViolation(name, "needs conversation_id")
            for name in ("from_sequence", "to_sequence")
            if getattr(request, name)
        ]
    if request.from_sequence < 0:
        violations.append(FieldViolation("from_sequence", "must not be negative"))
    if request.from_sequence and request.from_message_id:
        violations.append(FieldViolation("from_sequence", "contradicts from_message_id"))
    if request.HasField("to_sequence") and request.to_message_id:
        violations.append(FieldViolation("to_sequence", "contradicts to_message_id"))
    roles = to_roles(request.roles, violations)
    refuse(violations)
    if request.conversation_id:
        check_id(request.conversation_id, "conversation", field="conversation_id")
    else:
        check_id(request.agent_id, "agent", field="agent_id")
    if request.run_id:
        check_id(request.run_id, "run", field="run_id")
    for name, end in ends.items():
        if end:
            check_id(end, "message", field=name)
    return MessageFilter(
        conversation_id=request.conversation_id,
        agent_id=request.agent_id,
        roles=roles,
        run_id=request.run_id,
        newest_first=request.order == message_pb.LIST_ORDER_NEWEST_FIRST,
        from_id=request.from_message_id,
        to_id=request.to_message_id,
        from_sequence=request.from_sequence,
        to_sequence=request.to_sequence if request.HasField("to_sequence") else None,
        pinned_only=request.pinned_only,
    )


def to_image_id(request: message_pb.GetImageRequest) -> str:
    """Returns the image id of a request.

    Raises:
        InvalidArgumentError: The id is malformed.
    """
    if not is_image_id(request.image_id):
        refuse([FieldViolation("image_id", "must be 64 hexadecimal digits in lower case")])
    return request.image_id


def to_roles(
    values: Iterable[common.Role.ValueType], violations: list[FieldViolation]
) -> tuple[Role, ...]:
    """Returns roles; adds a violation for each unknown one."""
    roles = []
    for index, value in enumerate(values):
        if value in _ROLES:
            roles.append(_ROLES[value])
        else:
            violations.append(FieldViolation(f"roles[{index}]", "is not a known role"))
    return tuple(roles)


def _without_nul(value: Any) -> Any:
    # PostgreSQL cannot store NUL in text or jsonb, and output of tools may contain it.
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, dict):
        return {key: _without_nul(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    return value


def refuse(violations: list[FieldViolation]) -> None:
    """Raises an error with all violations, if there are any.

    Raises:
        InvalidArgumentError: There are violations.
    """
    if violations:
        raise InvalidArgumentError(
            "The request has wrong fields: "
            + "; ".join(f"{item.field} {item.description}" for item in violations)
            + ".",
            violations=violations,
        )
