"""Requests of `BlockService` and `ContextService` as commands and queries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.common.v1 import tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.core_memory.checks import Checks
from strata.core_memory.convert.edits import to_edit
from strata.core_memory.domain.blocks import (
    DEFAULT_LIMIT,
    LABEL_RULE,
    MAX_LIMIT,
    NewBlock,
    Origin,
    default_description,
    is_label,
    label_of,
)
from strata.core_memory.domain.commands import (
    Actor,
    Attachment,
    CreateBlock,
    EditBlock,
    GetBlock,
    PrepareAgent,
    UpdateBlock,
)
from strata.core_memory.domain.compilation import CompileQuery
from strata.core_memory.domain.ports import Request
from strata.core_memory.domain.rendering import Form
from strata.core_memory.domain.tool_rules import ToolRule, ToolRuleType
from strata.shared.context import require_caller

MAX_REQUEST_ID_CHARS = 200
MAX_DESCRIPTION_CHARS = 5_000
MAX_REASON_CHARS = 2_000
MAX_NAME_CHARS = 200
MAX_METADATA_PAIRS = 64
MAX_METADATA_KEY_CHARS = 128
MAX_METADATA_VALUE_CHARS = 2_000
MAX_BLOCKS_OF_AGENT = 100
MAX_TOOL_RULES = 1_000

Mutation: TypeAlias = (
    pb.CreateBlockRequest
    | pb.UpdateBlockRequest
    | pb.DeleteBlockRequest
    | pb.AttachBlockRequest
    | pb.DetachBlockRequest
    | pb.EditBlockRequest
)

_RULE_TYPES = {
    tool_pb2.ToolRuleType.Value(f"TOOL_RULE_TYPE_{kind.name}"): kind for kind in ToolRuleType
}


def to_request(method: str, message: Mutation) -> Request:
    """Returns what makes a mutation the same mutation: its id, and a hash of all it asks.

    Raises:
        InvalidArgumentError: The id is too long or cannot be stored.
    """
    checks = Checks()
    checks.text(message.request_id, "request_id", most=MAX_REQUEST_ID_CHARS)
    checks.done()
    payload = message.SerializeToString(deterministic=True)
    return Request(message.request_id, hashlib.sha256(f"{method}\n".encode() + payload).digest())


def to_create(message: pb.CreateBlockRequest) -> CreateBlock:
    """Returns the command of a CreateBlock request."""
    checks = Checks()
    agent_id = checks.id(message.agent_id, "agent", "agent_id", optional=True)
    block = _new_block(checks, message.block, "block")
    checks.done()
    return CreateBlock(_actor(), block, agent_id)


def to_get(message: pb.GetBlockRequest) -> GetBlock:
    """Returns the query of a GetBlock request."""
    checks = Checks()
    if message.block_id:
        checks.id(message.block_id, "block", "block_id")
        if message.agent_id or message.label:
            checks.fail("block_id", "excludes agent_id and label")
    elif message.agent_id or message.label:
        checks.id(message.agent_id, "agent", "agent_id")
        checks.text(message.label, "label", most=MAX_NAME_CHARS, required=True)
    else:
        checks.fail("block_id", "is required, or agent_id and label")
    as_of = None
    if message.HasField("as_of_time"):
        as_of = _time(checks, message.as_of_time, "as_of_time")
    checks.done()
    return GetBlock(message.block_id, message.agent_id, message.label, as_of)


def to_update(message: pb.UpdateBlockRequest) -> UpdateBlock:
    """Returns the command of an UpdateBlock request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id")
    checks.text(message.reason, "reason", most=MAX_REASON_CHARS)
    _check_revision(checks, message.expected_revision)
    command = UpdateBlock(
        actor=_actor(reason=message.reason),
        block_id=message.block_id,
        label=_label(checks, message.label, "label") if message.HasField("label") else None,
        value=(
            checks.text(message.value, "value", most=MAX_LIMIT)
            if message.HasField("value")
            else None
        ),
        description=(
            checks.text(message.description, "description", most=MAX_DESCRIPTION_CHARS)
            if message.HasField("description")
            else None
        ),
        limit=_limit(checks, message.limit, "limit") if message.HasField("limit") else None,
        read_only=message.read_only if message.HasField("read_only") else None,
        metadata=_metadata(checks, message.metadata, "metadata"),
        expected_revision=message.expected_revision,
    )
    checks.done()
    return command


def to_block_id(block_id: str) -> str:
    """Returns a checked block id."""
    checks = Checks()
    checks.id(block_id, "block", "block_id")
    checks.done()
    return block_id


def to_attachment(message: pb.AttachBlockRequest | pb.DetachBlockRequest) -> Attachment:
    """Returns the pair of an AttachBlock or DetachBlock request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.id(message.block_id, "block", "block_id")
    checks.done()
    return Attachment(message.agent_id, message.block_id)


def to_edit_block(message: pb.EditBlockRequest) -> EditBlock:
    """Returns the command of an EditBlock request.

    Raises:
        UnimplementedError: The verb is not built.
    """
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    label = checks.text(message.label, "label", most=MAX_NAME_CHARS, required=True)
    _check_revision(checks, message.expected_revision)
    for name in ("agent_id", "run_id", "step_id", "tool_call_id", "model"):
        checks.text(getattr(message.origin, name), f"origin.{name}", most=MAX_NAME_CHARS)
    checks.text(message.origin.reason, "origin.reason", most=MAX_REASON_CHARS)
    edit = to_edit(checks, message)
    checks.done()
    assert edit is not None
    return EditBlock(
        _editor(message), message.agent_id, label_of(label), edit, message.expected_revision
    )


def to_list(message: pb.ListBlocksRequest) -> tuple[str, str]:
    """Returns the agent and the label of a ListBlocks request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id", optional=True)
    checks.text(message.label, "label", most=MAX_NAME_CHARS)
    checks.done()
    return message.agent_id, message.label


def to_diff(message: pb.DiffBlockRequest) -> tuple[str, int, int]:
    """Returns the block and the two revisions of a DiffBlock request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id")
    for field in ("from_revision", "to_revision"):
        checks.number(getattr(message, field), field, least=0, most=2**62)
    checks.done()
    return message.block_id, message.from_revision, message.to_revision


def to_compile(message: context_pb.CompileRequest) -> CompileQuery:
    """Returns the query of a Compile request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.text(message.if_revision, "if_revision", most=MAX_NAME_CHARS)
    if len(message.tool_rules) > MAX_TOOL_RULES:
        checks.fail("tool_rules", f"at most {MAX_TOOL_RULES} are allowed")
    rules: list[ToolRule] = []
    for index, rule in enumerate(message.tool_rules[:MAX_TOOL_RULES]):
        kind = _RULE_TYPES.get(rule.type)
        if kind is None:
            checks.fail(f"tool_rules[{index}].type", "must be one of the known types")
        else:
            children = tuple(rule.children)
            rules.append(ToolRule(kind, rule.tool_name, children, rule.max_count_limit))
    checks.done()
    form = Form.of(message.agent_type, line_numbers=message.line_numbers)
    return CompileQuery(message.agent_id, form, tuple(rules), message.if_revision)


def to_prepare(message: context_pb.PrepareAgentRequest) -> PrepareAgent:
    """Returns the command of a PrepareAgent request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    if len(message.new_blocks) + len(message.block_ids) > MAX_BLOCKS_OF_AGENT:
        checks.fail("new_blocks", f"an agent begins with at most {MAX_BLOCKS_OF_AGENT} blocks")
    if len(set(message.block_ids)) < len(message.block_ids):
        checks.fail("block_ids", "must not name a block twice")
    blocks = [
        _new_block(checks, block, f"new_blocks[{index}]")
        for index, block in enumerate(message.new_blocks)
    ]
    for index, block_id in enumerate(message.block_ids):
        checks.id(block_id, "block", f"block_ids[{index}]")
    checks.done()
    return PrepareAgent(_actor(), message.agent_id, tuple(blocks), tuple(message.block_ids))


def to_agent_id(agent_id: str) -> str:
    """Returns a checked agent id."""
    checks = Checks()
    checks.id(agent_id, "agent", "agent_id")
    checks.done()
    return agent_id


def _new_block(checks: Checks, message: pb.NewBlock, field: str) -> NewBlock:
    label = _label(checks, message.label, f"{field}.label")
    description = default_description(label)
    if message.HasField("description"):
        description = message.description
        checks.text(description, f"{field}.description", most=MAX_DESCRIPTION_CHARS)
    metadata = _metadata(checks, message.metadata, f"{field}.metadata")
    return NewBlock(
        label=label,
        value=checks.text(message.value, f"{field}.value", most=MAX_LIMIT),
        description=description,
        limit=_limit(checks, message.limit or DEFAULT_LIMIT, f"{field}.limit"),
        read_only=message.read_only,
        metadata={key: value for key, value in metadata.items() if value},
    )


def _label(checks: Checks, label: str, field: str) -> str:
    if not is_label(label):
        checks.fail(field, LABEL_RULE)
    return label


def _limit(checks: Checks, limit: int, field: str) -> int:
    return checks.number(limit, field, least=1, most=MAX_LIMIT)


def _metadata(checks: Checks, pairs: Mapping[str, str], field: str) -> dict[str, str]:
    if len(pairs) > MAX_METADATA_PAIRS:
        checks.fail(field, f"has {len(pairs)} pairs, at most {MAX_METADATA_PAIRS} are allowed")
    for key, value in pairs.items():
        checks.text(key, f"{field} key", most=MAX_METADATA_KEY_CHARS, required=True)
        checks.text(value, f"{field}[{key[:40]}]", most=MAX_METADATA_VALUE_CHARS)
    return dict(pairs)


def _check_revision(checks: Checks, expected: int) -> None:
    checks.number(expected, "expected_revision", least=0, most=2**62)


def _time(checks: Checks, stamp: Timestamp, field: str) -> datetime | None:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        checks.fail(field, "is not a time between the years 1 and 9999")
        return None


def _actor(*, reason: str = "") -> Actor:
    caller = require_caller()
    return Actor(caller.principal, Origin(run_id=caller.run_id or "", reason=reason))


def _editor(message: pb.EditBlockRequest) -> Actor:
    """Returns who edits. A run named by the signed token outweighs what the request says."""
    caller, origin = require_caller(), message.origin
    return Actor(
        caller.principal,
        Origin(
            agent_id=origin.agent_id or message.agent_id,
            run_id=caller.run_id or origin.run_id,
            step_id=origin.step_id,
            tool_call_id=origin.tool_call_id,
            model=origin.model,
            reason=origin.reason,
        ),
    )
