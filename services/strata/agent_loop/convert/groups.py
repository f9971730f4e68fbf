"""Converts groups, and validates requests about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata.agent_loop.agents.memory_agents import MAX_FREQUENCY
from strata.agent_loop.convert import checks
from strata.agent_loop.convert.agents import request_of
from strata.agent_loop.domain.agent.groups import (
    DEFAULT_TERMINATION_TOKEN,
    IN_TURNS,
    MANAGED,
    MAX_MEMBERS,
    MAX_SHARED_BLOCKS,
    MAX_TURNS,
    PAIRED,
    CreateGroup,
    Group,
    GroupMember,
    ManagerConfig,
    ManagerType,
    UpdateGroup,
    needs_manager_agent,
    wrong_member_count,
)
from strata.agent_loop.domain.agent.message_buffer import MAX_BUFFER
from strata.api.agent_loop.v1 import group_service_pb2 as pb
from strata.protocol.errors import FieldViolation, invalid_field
from strata.shared.convert.enums import EnumTable
from strata.shared.idempotency.keys import request_id_violations
from strata.shared.ids import check_id, new_id

_MAX_TOKEN = 128
_TYPES = EnumTable(pb.ManagerType, ManagerType)


def create_from_proto(request: pb.CreateGroupRequest) -> CreateGroup:
    """Returns the group to create.

    Raises:
        InvalidArgumentError: A malformed id; or naming every wrong field.
    """
    _check_manager_id(request.manager)
    _check_ids("agent_ids", request.agent_ids, "agent")
    _check_ids("shared_block_ids", request.shared_block_ids, "block")
    checks.refuse(
        [
            *request_id_violations(request.request_id),
            *checks.text_violations("description", request.description, checks.MAX_DESCRIPTION),
            *_manager_violations(request.manager, request.agent_ids),
            *_member_violations(
                "agent_ids", request.agent_ids, may_be_empty=_kind(request.manager) in PAIRED
            ),
            *_block_violations("shared_block_ids", request.shared_block_ids),
        ]
    )
    return CreateGroup(
        id=new_id("group"),
        description=request.description,
        manager=_manager_from_proto(request.manager),
        agent_ids=tuple(request.agent_ids),
        shared_block_ids=tuple(request.shared_block_ids),
        request=request_of(request),
    )


def update_from_proto(request: pb.UpdateGroupRequest) -> UpdateGroup:
    """Returns what to change.

    Raises:
        InvalidArgumentError: A malformed id; or naming every wrong field.
    """
    check_id(request.group_id, "group", field="group_id")
    _check_manager_id(request.manager)
    _check_ids("members.agent_ids", request.members.agent_ids, "agent")
    _check_ids("shared_blocks.block_ids", request.shared_blocks.block_ids, "block")
    members = tuple(request.members.agent_ids) if request.HasField("members") else None
    blocks = None
    if request.HasField("shared_blocks"):
        blocks = tuple(request.shared_blocks.block_ids)
    violations = [
        *request_id_violations(request.request_id),
        *checks.text_violations("description", request.description, checks.MAX_DESCRIPTION),
    ]
    if request.HasField("manager"):
        violations += _manager_violations(request.manager, members or ())
    if members is not None:
        # Without a manager in the request the stored group's kind applies.
        may_be_empty = not request.HasField("manager") or _kind(request.manager) in PAIRED
        violations += _member_violations("members.agent_ids", members, may_be_empty=may_be_empty)
    if blocks is not None:
        violations += _block_violations("shared_blocks.block_ids", blocks)
    if request.expected_revision < 0:
        violations.append(FieldViolation("expected_revision", "must not be negative"))
    checks.refuse(violations)
    return UpdateGroup(
        group_id=request.group_id,
        description=request.description if request.HasField("description") else None,
        manager=_manager_from_proto(request.manager) if request.HasField("manager") else None,
        agent_ids=members,
        shared_block_ids=blocks,
        expected_revision=request.expected_revision,
        request=request_of(request),
    )


def manager_type_from_proto(value: pb.ManagerType.ValueType) -> ManagerType | None:
    """Returns the kind that a listing requests; None for all.

    Raises:
        InvalidArgumentError: The kind is unknown.
    """
    if value == pb.MANAGER_TYPE_UNSPECIFIED:
        return None
    if value not in _TYPES.from_proto:
        raise invalid_field("manager_type", "is not a known kind")
    return _TYPES.from_proto[value]


def group_to_proto(group: Group) -> pb.Group:
    """Returns a group as a proto."""
    manager = group.manager
    out = pb.Group(
        id=group.id,
        description=group.description,
        manager=pb.ManagerConfig(
            type=_TYPES.to_proto[manager.type],
            manager_agent_id=manager.manager_agent_id,
            max_turns=manager.max_turns,
            termination_token=manager.termination_token,
            sleeptime_agent_frequency=manager.sleeptime_agent_frequency,
            max_message_buffer_length=manager.max_message_buffer_length,
            min_message_buffer_length=manager.min_message_buffer_length,
        ),
        members=map(_member_to_proto, group.members),
        shared_block_ids=group.shared_block_ids,
        revision=group.revision,
        holder_agent_id=group.holder_agent_id,
    )
    if group.manager_agent is not None:
        out.manager_agent.CopyFrom(_member_to_proto(group.manager_agent))
    out.create_time.FromDatetime(group.create_time)
    out.update_time.FromDatetime(group.update_time)
    return out


def _member_to_proto(member: GroupMember) -> pb.GroupMember:
    return pb.GroupMember(
        agent_id=member.agent_id, name=member.name, description=member.description
    )


def _manager_from_proto(manager: pb.ManagerConfig) -> ManagerConfig:
    kind = _kind(manager)
    return ManagerConfig(
        type=kind,
        manager_agent_id=manager.manager_agent_id,
        max_turns=manager.max_turns,
        termination_token=(
            manager.termination_token or DEFAULT_TERMINATION_TOKEN
            if kind is ManagerType.DYNAMIC
            else ""
        ),
        sleeptime_agent_frequency=manager.sleeptime_agent_frequency,
        max_message_buffer_length=manager.max_message_buffer_length,
        min_message_buffer_length=manager.min_message_buffer_length,
    )


def _kind(manager: pb.ManagerConfig) -> ManagerType:
    return _TYPES.from_proto.get(manager.type, ManagerType.ROUND_ROBIN)


def _manager_violations(
    manager: pb.ManagerConfig, agent_ids: Sequence[str]
) -> Iterator[FieldViolation]:
    if manager.type not in (*_TYPES.from_proto, pb.MANAGER_TYPE_UNSPECIFIED):
        yield FieldViolation("manager.type", "is not a known kind")
        return
    kind = _kind(manager)
    agent_id = manager.manager_agent_id
    if kind not in MANAGED:
        if agent_id:
            yield _inapplicable_field("manager_agent_id", kind, MANAGED)
    elif not agent_id:
        yield needs_manager_agent(kind)
    elif agent_id in agent_ids:
        yield FieldViolation("manager.manager_agent_id", "must not be one of the members")
    for name, kinds, maximum in (
        ("max_turns", IN_TURNS, MAX_TURNS),
        ("sleeptime_agent_frequency", {ManagerType.SLEEPTIME}, MAX_FREQUENCY),
        ("max_message_buffer_length", {ManagerType.VOICE_SLEEPTIME}, MAX_BUFFER),
        ("min_message_buffer_length", {ManagerType.VOICE_SLEEPTIME}, MAX_BUFFER),
    ):
        value = getattr(manager, name)
        if value and kind not in kinds:
            yield _inapplicable_field(name, kind, kinds)
        yield from checks.range_violations(f"manager.{name}", value, 0, maximum)
    token = manager.termination_token
    if token and kind is not ManagerType.DYNAMIC:
        yield _inapplicable_field("termination_token", kind, {ManagerType.DYNAMIC})
    if token and (len(token) > _MAX_TOKEN or not token.isprintable() or not token.strip()):
        yield FieldViolation(
            "manager.termination_token", f"must be at most {_MAX_TOKEN} printable characters"
        )


def _inapplicable_field(
    name: str, kind: ManagerType, applicable: set[ManagerType] | frozenset[ManagerType]
) -> FieldViolation:
    kinds = ", ".join(sorted(applicable))
    return FieldViolation(f"manager.{name}", f"applies only to {kinds}, not to the kind {kind}")


def _member_violations(
    field: str, agent_ids: Sequence[str], *, may_be_empty: bool
) -> Iterator[FieldViolation]:
    if not agent_ids and may_be_empty:
        return
    if not 1 <= len(agent_ids) <= MAX_MEMBERS:
        yield wrong_member_count(field, len(agent_ids))
        return
    yield from _repeated_id_violations(field, agent_ids)


def _block_violations(field: str, block_ids: Sequence[str]) -> Iterator[FieldViolation]:
    if len(block_ids) > MAX_SHARED_BLOCKS:
        yield FieldViolation(
            field, f"must hold at most {MAX_SHARED_BLOCKS} blocks, not {len(block_ids)}"
        )
        return
    yield from _repeated_id_violations(field, block_ids)


def _repeated_id_violations(field: str, ids: Sequence[str]) -> Iterator[FieldViolation]:
    for index, value in enumerate(ids):
        if value in ids[:index]:
            yield FieldViolation(f"{field}[{index}]", "is in the list twice")


def _check_manager_id(manager: pb.ManagerConfig) -> None:
    if manager.manager_agent_id:
        check_id(manager.manager_agent_id, "agent", field="manager.manager_agent_id")


def _check_ids(field: str, ids: Sequence[str], prefix: str) -> None:
    for index, value in enumerate(ids):
        check_id(value, prefix, field=f"{field}[{index}]")
