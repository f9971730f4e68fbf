"""Converts messages and windows between protos and the domain, and validates requests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from strata.api.common.v1 import message_pb2 as common
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.protocol.errors import invalid_field
from strata.protocol.images import ImageError, is_image_id
from strata.recall.convert.parts import (
    part_from_json,
    parts_to_json,
    provenance_from_text,
    provenance_to_text,
)
from strata.recall.domain.messages import (
    Compaction,
    HeldWindow,
    Message,
    MessageFilter,
    Step,
    Window,
)
from strata.recall.domain.pairs import pair_violations
from strata.shared.checks import Checks
from strata.shared.convert.messages import ROLES
from strata.shared.convert.usage import usage_from_proto, usage_to_proto
from strata.shared.messages import MessageRole


def message_to_proto(message: Message) -> common.Message:
    """Returns a stored message as a proto."""
    wire = common.Message(
        id=message.id,
        conversation_id=message.conversation_id,
        agent_id=message.agent_id,
        sequence=message.sequence,
        role=ROLES.to_proto[message.role],
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
        wire.usage.CopyFrom(usage_to_proto(message.usage))
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


def to_held(request: window_pb.BeginTurnRequest) -> HeldWindow | None:
    """Returns the part of the window that the caller of a turn has cached, if any."""
    if not request.HasField("held"):
        return None
    held = request.held
    return HeldWindow(held.revision, held.message_count, held.last_message_id)


def to_message(wire: common.Message, now: datetime, step: int = 0) -> Message:
    """Returns a message to store; NUL characters are replaced.

    Raises:
        ImageError: The bytes of an image are not an accepted image.
    """
    parts, images = parts_to_json(wire.parts)
    created = wire.create_time.ToDatetime(tzinfo=UTC) if wire.HasField("create_time") else None
    return Message(
        id=wire.id,
        role=ROLES.from_proto[wire.role],
        parts=parts,
        create_time=created or now,
        name=wire.name,
        run_id=wire.run_id,
        step_id=wire.step_id,
        step=step,
        group_id=wire.group_id,
        model=wire.model,
        usage=usage_from_proto(wire.usage) if wire.HasField("usage") else None,
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
    checks = Checks()
    for index, wire in enumerate(wires):
        path = f"{field}[{index}]"
        checks.unless(wire.role in ROLES.from_proto, f"{path}.role", "must be set")
        checks.unless(wire.id.startswith("message-"), f"{path}.id", "must be a message id")
        same_run = not run_id or wire.run_id == run_id
        checks.unless(same_run, f"{path}.run_id", "must be the run of the request")
        if wire.HasField("create_time"):
            checks.time(wire.create_time, f"{path}.create_time")
    checks.done()
    messages = []
    for index, wire in enumerate(wires):
        try:
            messages.append(to_message(wire, now, step))
        except ImageError as error:
            raise invalid_field(f"{field}[{index}].parts", f"hold an image that {error}") from None
    return tuple(messages)


def to_open(request: window_pb.OpenWindowRequest, now: datetime) -> tuple[Message, ...]:
    """Returns the first messages of a window.

    Raises:
        InvalidArgumentError: The ids are wrong or the first message is not the system message.
    """
    checks = Checks()
    checks.id(request.conversation_id, "conversation", "conversation_id")
    checks.id(request.agent_id, "agent", "agent_id")
    checks.done()
    messages = to_messages(request.messages, "messages", now)
    checks.extend(pair_violations(messages))
    begins = bool(messages) and messages[0].role is MessageRole.SYSTEM
    checks.unless(begins, "messages", "must begin with the system message")
    checks.done()
    return messages


def to_step(request: window_pb.CommitStepRequest, now: datetime) -> Step:
    """Returns the step to commit.

    Raises:
        InvalidArgumentError: Ids or numbers are wrong, or a call and its return are separated.
    """
    checks = Checks()
    checks.id(request.conversation_id, "conversation", "conversation_id")
    checks.id(request.agent_id, "agent", "agent_id")
    checks.id(request.run_id, "run", "run_id")
    checks.unless(request.attempt >= 1, "attempt", "must be at least 1")
    checks.unless(request.step >= 1, "step", "must be at least 1")
    checks.not_negative(request.evict_count, "evict_count")
    checks.unless(bool(request.messages), "messages", "must not be empty")
    checks.done()
    messages = to_messages(
        request.messages, "messages", now, step=request.step, run_id=request.run_id
    )
    checks.extend(pair_violations(messages))
    checks.done()
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
    checks = Checks()
    checks.id(request.conversation_id, "conversation", "conversation_id")
    checks.id(request.run_id, "run", "run_id", optional=True)
    checks.done()
    summary = to_messages([request.summary], "summary", now)[0]
    if summary.role is not MessageRole.SUMMARY:
        raise invalid_field("summary.role", "must be ROLE_SUMMARY")
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
    checks = Checks()
    checks.exactly_one(request, "conversation_id", "agent_id")
    checks.id(request.conversation_id, "conversation", "conversation_id", optional=True)
    checks.id(request.agent_id, "agent", "agent_id", optional=True)
    checks.id(request.run_id, "run", "run_id", optional=True)
    is_known_order = request.order in message_pb.ListOrder.values()
    checks.unless(is_known_order, "order", "is not a known order")
    for end in ("from", "to"):
        by_id, by_sequence = f"{end}_message_id", f"{end}_sequence"
        checks.id(getattr(request, by_id), "message", by_id, optional=True)
        if not request.conversation_id:
            for name in (by_id, by_sequence):
                checks.unless(not getattr(request, name), name, "needs conversation_id")
    checks.not_negative(request.from_sequence, "from_sequence")
    if request.from_message_id:
        checks.unless(not request.from_sequence, "from_sequence", "contradicts from_message_id")
    if request.to_message_id:
        checks.unless(
            not request.HasField("to_sequence"), "to_sequence", "contradicts to_message_id"
        )
    roles = to_roles(checks, request.roles)
    checks.done()
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
        raise invalid_field("image_id", "must be 64 hexadecimal digits in lower case")
    return request.image_id


def to_roles(checks: Checks, values: Iterable[common.Role.ValueType]) -> tuple[MessageRole, ...]:
    """Returns roles; adds a violation for each unknown one."""
    roles = []
    for index, value in enumerate(values):
        if value in ROLES.from_proto:
            roles.append(ROLES.from_proto[value])
        else:
            checks.fail(f"roles[{index}]", "is not a known role")
    return tuple(roles)
