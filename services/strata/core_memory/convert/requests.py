"""Converts requests of `BlockService` and `ContextService` to commands and queries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.common.v1 import tool_pb2
from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.core_memory.checks import Checks
from strata.core_memory.convert.edits import to_edit
from strata.core_memory.convert.labels import to_taint
from strata.core_memory.domain.blocks import (
    DEFAULT_LIMIT,
    LABEL_RULE,
    MAX_LIMIT,
    EditorKind,
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
    DeleteBlock,
    EditBlock,
    GetBlock,
    LimitPrompt,
    ListBlocks,
    PrepareAgent,
    ReleaseAgent,
    ShareBlocks,
    UpdateBlock,
)
from strata.core_memory.domain.compilation import (
    DEFAULT_LIMITS,
    MAX_FILES_OPEN,
    MAX_VIEW_CHARS,
    CompileQuery,
    FileLimits,
)
from strata.core_memory.domain.ports import RequestKey
from strata.core_memory.domain.prompt_limits import NO_LIMIT, PromptLimit
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
    | pb.RevertBlockRequest
)

EDITOR_KINDS = {
    pb.EDITOR_KIND_USER: EditorKind.USER,
    pb.EDITOR_KIND_AGENT: EditorKind.AGENT,
    pb.EDITOR_KIND_SLEEPTIME_AGENT: EditorKind.SLEEPTIME_AGENT,
}
_RULE_TYPES = {
    tool_pb2.ToolRuleType.Value(f"TOOL_RULE_TYPE_{kind.name}"): kind for kind in ToolRuleType
}


def to_request(method: str, message: Mutation) -> RequestKey:
    """Returns the idempotency key of a mutation: its request id and a hash of its content.

    Raises:
        InvalidArgumentError: The id is too long or cannot be stored.
    """
    checks = Checks()
    checks.text(message.request_id, "request_id", most=MAX_REQUEST_ID_CHARS)
    checks.done()
    payload = message.SerializeToString(deterministic=True)
    return RequestKey(message.request_id, hashlib.sha256(f"{method}\n".encode() + payload).digest())


def to_create(message: pb.CreateBlockRequest) -> CreateBlock:
    """Returns the command of a CreateBlock request."""
    checks = Checks()
    agent_id = checks.id(message.agent_id, "agent", "agent_id", optional=True)
    block = _new_block(checks, message.block, "block")
    checks.done()
    return CreateBlock(actor(), block, agent_id)


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
    as_of = optional_time(checks, message, "as_of_time")
    if message.show_detached and (message.block_id or as_of is not None):
        checks.fail("show_detached", "needs agent_id and label, and excludes as_of_time")
    checks.done()
    return GetBlock(message.block_id, message.agent_id, message.label, as_of, message.show_detached)


def to_update(message: pb.UpdateBlockRequest) -> UpdateBlock:
    """Returns the command of an UpdateBlock request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id")
    checks.text(message.reason, "reason", most=MAX_REASON_CHARS)
    _check_revisions(checks, message)
    if message.clear_taint and require_caller().run_id:
        checks.fail("clear_taint", "cannot be set by a run, only by a person")
    command = UpdateBlock(
        actor=actor(reason=message.reason),
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
        base_revision=message.base_revision,
        clear_taint=message.clear_taint,
    )
    checks.done()
    return command


def to_delete(message: pb.DeleteBlockRequest) -> DeleteBlock:
    """Returns the command of a DeleteBlock request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id")
    checks.text(message.reason, "reason", most=MAX_REASON_CHARS)
    checks.done()
    return DeleteBlock(actor(reason=message.reason), message.block_id, message.purge)


def to_attachment(message: pb.AttachBlockRequest | pb.DetachBlockRequest) -> Attachment:
    """Returns the agent and the block of an AttachBlock or DetachBlock request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.id(message.block_id, "block", "block_id")
    checks.done()
    return Attachment(message.agent_id, message.block_id)


def to_share(message: context_pb.ShareBlocksRequest) -> ShareBlocks:
    """Returns the command of a ShareBlocks request."""
    checks = Checks()
    for index, agent_id in enumerate(message.agent_ids):
        checks.id(agent_id, "agent", f"agent_ids[{index}]")
    for index, block_id in enumerate(message.block_ids):
        checks.id(block_id, "block", f"block_ids[{index}]")
    checks.done()
    return ShareBlocks(tuple(message.agent_ids), tuple(message.block_ids))


def to_edit_block(message: pb.EditBlockRequest) -> EditBlock:
    """Returns the command of an EditBlock request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    # The headers of a patch may name its blocks.
    required = message.WhichOneof("edit") != "patch"
    label = checks.text(message.label, "label", most=MAX_NAME_CHARS, required=required)
    checks.id(message.block_id, "block", "block_id", optional=True)
    if message.block_id and not required:
        checks.fail("block_id", "cannot be set with a patch, which names its blocks by label")
    _check_revisions(checks, message)
    if message.origin.kind not in (pb.EDITOR_KIND_UNSPECIFIED, *EDITOR_KINDS):
        checks.fail("origin.kind", "must be one of the known kinds")
    for name in ("agent_id", "run_id", "step_id", "tool_call_id", "tool_name", "model"):
        checks.text(getattr(message.origin, name), f"origin.{name}", most=MAX_NAME_CHARS)
    checks.text(message.origin.reason, "origin.reason", most=MAX_REASON_CHARS)
    edit = to_edit(checks, message)
    checks.done()
    assert edit is not None
    return EditBlock(
        actor=_editor(message),
        agent_id=message.agent_id,
        label=label_of(label),
        edit=edit,
        expected_revision=message.expected_revision,
        base_revision=message.base_revision,
        block_id=message.block_id,
    )


def to_list(message: pb.ListBlocksRequest) -> ListBlocks:
    """Returns the query of a ListBlocks request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id", optional=True)
    checks.text(message.label, "label", most=MAX_NAME_CHARS)
    as_of = optional_time(checks, message, "as_of_time")
    if as_of is not None and not message.agent_id:
        checks.fail("as_of_time", "needs agent_id")
    if message.show_deleted and message.agent_id:
        checks.fail("show_deleted", "excludes agent_id: no agent has a deleted block")
    checks.done()
    return ListBlocks(message.agent_id, message.label, as_of, message.show_deleted)


def to_compile(message: context_pb.CompileRequest) -> CompileQuery:
    """Returns the query of a Compile request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.text(message.if_revision, "if_revision", most=MAX_NAME_CHARS)
    if len(message.tool_rules) > MAX_TOOL_RULES:
        checks.fail("tool_rules", f"must not be more than {MAX_TOOL_RULES}")
    rules: list[ToolRule] = []
    for index, rule in enumerate(message.tool_rules[:MAX_TOOL_RULES]):
        kind = _RULE_TYPES.get(rule.type)
        if kind is None:
            checks.fail(f"tool_rules[{index}].type", "must be one of the known types")
        else:
            children = tuple(rule.children)
            rules.append(ToolRule(kind, rule.tool_name, children, rule.max_count_limit))
    limits = FileLimits(
        max_open=message.max_files_open or DEFAULT_LIMITS.max_open,
        view_chars=message.per_file_view_window_char_limit or DEFAULT_LIMITS.view_chars,
    )
    checks.number(limits.max_open, "max_files_open", least=1, most=MAX_FILES_OPEN)
    checks.number(
        limits.view_chars, "per_file_view_window_char_limit", least=1, most=MAX_VIEW_CHARS
    )
    as_of = optional_time(checks, message, "as_of_time")
    checks.done()
    form = Form.of(message.agent_type, line_numbers=message.line_numbers)
    return CompileQuery(message.agent_id, form, tuple(rules), message.if_revision, limits, as_of)


def to_fit(message: context_pb.CloseFilesToFitRequest) -> tuple[CompileQuery, int, bool]:
    """Returns the query, the maximum in bytes, and the preview flag of CloseFilesToFit."""
    checks = Checks()
    if message.compile.if_revision or message.compile.HasField("as_of_time"):
        checks.fail("compile", "must set neither if_revision nor as_of_time")
    most = checks.number(message.max_bytes, "max_bytes", least=0, most=2**62)
    checks.done()
    return to_compile(message.compile), most, message.preview


def to_prepare(message: context_pb.PrepareAgentRequest) -> PrepareAgent:
    """Returns the command of a PrepareAgent request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    if len(message.blocks) + len(message.block_ids) > MAX_BLOCKS_OF_AGENT:
        checks.fail("blocks", f"must not be more than {MAX_BLOCKS_OF_AGENT}, with block_ids")
    if len(set(message.block_ids)) < len(message.block_ids):
        checks.fail("block_ids", "must not name a block twice")
    blocks = [
        _new_block(checks, block, f"blocks[{index}]") for index, block in enumerate(message.blocks)
    ]
    for index, block_id in enumerate(message.block_ids):
        checks.id(block_id, "block", f"block_ids[{index}]")
    if message.follows_agent_id:
        checks.id(message.follows_agent_id, "agent", "follows_agent_id")
    limit = _prompt_limit(checks, message, "prompt_limit")
    revision = checks.number(message.agent_revision, "agent_revision", least=0, most=2**62)
    checks.done()
    return PrepareAgent(
        actor(),
        message.agent_id,
        tuple(blocks),
        tuple(message.block_ids),
        limit,
        revision,
        message.follows_agent_id,
    )


def to_limit_prompt(message: context_pb.LimitPromptRequest) -> LimitPrompt:
    """Returns the command of a LimitPrompt request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    limit = _prompt_limit(checks, message, "prompt_limit")
    revision = checks.number(message.agent_revision, "agent_revision", least=0, most=2**62)
    checks.done()
    return LimitPrompt(message.agent_id, limit, message.only_raise, revision)


def to_release(message: context_pb.ReleaseAgentRequest) -> ReleaseAgent:
    """Returns the command of a ReleaseAgent request."""
    checks = Checks()
    checks.id(message.agent_id, "agent", "agent_id")
    checks.done()
    return ReleaseAgent(actor(reason="the agent was deleted"), message.agent_id)


def _prompt_limit(
    checks: Checks,
    message: context_pb.PrepareAgentRequest | context_pb.LimitPromptRequest,
    field: str,
) -> PromptLimit:
    if not message.HasField("prompt_limit"):
        return NO_LIMIT
    limit = message.prompt_limit
    checks.number(limit.bytes, f"{field}.bytes", least=0, most=2**62)
    checks.number(limit.files_bytes, f"{field}.files_bytes", least=0, most=2**62)
    checks.number(limit.max_files_open, f"{field}.max_files_open", least=0, most=MAX_FILES_OPEN)
    view_chars = limit.per_file_view_window_char_limit
    checks.number(
        view_chars, f"{field}.per_file_view_window_char_limit", least=0, most=MAX_VIEW_CHARS
    )
    return PromptLimit(
        limit.bytes, limit.line_numbers, limit.files_bytes, limit.max_files_open, view_chars
    )


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


def _check_revisions(checks: Checks, message: pb.EditBlockRequest | pb.UpdateBlockRequest) -> None:
    for field in ("expected_revision", "base_revision"):
        checks.number(getattr(message, field), field, least=0, most=2**62)


def optional_time(checks: Checks, message: Message, field: str) -> datetime | None:
    """Returns the time of a field, None if it is not set."""
    if not message.HasField(field):
        return None
    stamp: Timestamp = getattr(message, field)
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        checks.fail(field, "is not a time between the years 1 and 9999")
        return None


def actor(*, reason: str = "") -> Actor:
    """Returns the caller as the author of a change through the API."""
    caller = require_caller()
    return Actor(
        caller.principal,
        Origin(run_id=caller.run_id or "", reason=reason, kind=EditorKind.USER),
    )


def _editor(message: pb.EditBlockRequest) -> Actor:
    """Returns the author of an edit. The run of the signed token overrides that of the request."""
    caller, origin = require_caller(), message.origin
    return Actor(
        caller.principal,
        Origin(
            agent_id=origin.agent_id or message.agent_id,
            run_id=caller.run_id or origin.run_id,
            step_id=origin.step_id,
            tool_call_id=origin.tool_call_id,
            tool_name=origin.tool_name,
            model=origin.model,
            reason=origin.reason,
            kind=EDITOR_KINDS.get(origin.kind, EditorKind.UNKNOWN),
            taint=to_taint(origin.taint),
        ),
    )
