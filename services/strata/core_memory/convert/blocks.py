"""Converts requests and responses of `BlockService` on blocks, and the verbs of EditBlock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.core_memory.domain.blocks import (
    DEFAULT_LIMIT,
    LABEL_RULE,
    MAX_LIMIT,
    Block,
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
    Change,
    CreateBlock,
    DeleteBlock,
    EditBlock,
    Edited,
    GetBlock,
    ListBlocks,
    UpdateBlock,
    Updated,
)
from strata.core_memory.domain.text_edits.verbs import (
    Append,
    Create,
    Delete,
    Edit,
    Insert,
    Patch,
    Rename,
    Replace,
    Rethink,
    StringReplace,
)
from strata.shared.checks import Checks
from strata.shared.context import require_caller
from strata.shared.convert.enums import EnumTable
from strata.shared.convert.messages import labels_to_proto, taint_from_proto
from strata.shared.idempotency.keys import RequestKey, check_request_id, digest_of
from strata.shared.metadata_pairs import MAX_METADATA_PAIRS

MAX_DESCRIPTION_CHARS = 5_000
MAX_REASON_CHARS = 2_000
MAX_NAME_CHARS = 200
MAX_METADATA_KEY_CHARS = 128
MAX_METADATA_VALUE_CHARS = 2_000

Mutation: TypeAlias = (
    pb.CreateBlockRequest
    | pb.UpdateBlockRequest
    | pb.DeleteBlockRequest
    | pb.AttachBlockRequest
    | pb.DetachBlockRequest
    | pb.EditBlockRequest
    | pb.RevertBlockRequest
)

EDITOR_KINDS = EnumTable(pb.EditorKind, EditorKind, unspecified=EditorKind.UNKNOWN)


def to_request(method: str, message: Mutation) -> RequestKey:
    """Returns the idempotency key of a mutation: its request id and a hash of its content.

    Raises:
        InvalidArgumentError: The id is not valid.
    """
    return RequestKey(check_request_id(message.request_id), digest_of(f"{method}\n", message))


def to_create(message: pb.CreateBlockRequest) -> CreateBlock:
    """Returns the command of a CreateBlock request."""
    checks = Checks()
    agent_id = checks.id(message.agent_id, "agent", "agent_id", optional=True)
    block = new_block(checks, message.block, "block")
    checks.done()
    return CreateBlock(actor(), block, agent_id)


def to_get(message: pb.GetBlockRequest) -> GetBlock:
    """Returns the query of a GetBlock request."""
    checks = Checks()
    if message.block_id:
        checks.id(message.block_id, "block", "block_id")
        if message.agent_id or message.label:
            checks.fail("block_id", "cannot be combined with agent_id and label")
    elif message.agent_id or message.label:
        checks.id(message.agent_id, "agent", "agent_id")
        checks.text(message.label, "label", most=MAX_NAME_CHARS, required=True)
    else:
        checks.fail("block_id", "is required, unless agent_id and label are set")
    as_of = checks.optional_time(message, "as_of_time")
    if message.show_detached and (message.block_id or as_of is not None):
        checks.fail(
            "show_detached", "needs agent_id and label, and cannot be combined with as_of_time"
        )
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
    if message.origin.kind not in EDITOR_KINDS.from_proto:
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
    as_of = checks.optional_time(message, "as_of_time")
    if as_of is not None and not message.agent_id:
        checks.fail("as_of_time", "needs agent_id")
    if message.show_deleted and message.agent_id:
        checks.fail(
            "show_deleted", "cannot be combined with agent_id: no agent has a deleted block"
        )
    checks.done()
    return ListBlocks(message.agent_id, message.label, as_of, message.show_deleted)


def new_block(checks: Checks, message: pb.NewBlock, field: str) -> NewBlock:
    """Returns a block to create, and adds its violations to `checks`."""
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


def actor(*, reason: str = "") -> Actor:
    """Returns the caller as the author of a change through the API."""
    caller = require_caller()
    return Actor(
        caller.principal,
        Origin(run_id=caller.run_id or "", reason=reason, kind=EditorKind.USER),
    )


def _editor(message: pb.EditBlockRequest) -> Actor:
    """Returns the author of an edit. The run of the signed token takes precedence."""
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
            kind=EDITOR_KINDS.from_proto.get(origin.kind, EditorKind.UNKNOWN),
            taint=taint_from_proto(origin.taint),
        ),
    )


def to_edit(checks: Checks, message: pb.EditBlockRequest) -> Edit | None:
    """Returns the verb of a request; None, with a violation, if it has none."""
    verb = message.WhichOneof("edit")
    if verb is None:
        checks.fail("edit", "is required: name one verb")
        return None
    _check_texts(checks, message, verb)
    return _edit(message, verb)


def _edit(message: pb.EditBlockRequest, verb: str) -> Edit:
    match verb:
        case "append":
            return Append(message.append.content)
        case "replace":
            return Replace(message.replace.old_content, message.replace.new_content)
        case "string_replace":
            edit = message.string_replace
            return StringReplace(edit.old_string, edit.new_string)
        case "insert":
            insert = message.insert
            line = insert.insert_line if insert.HasField("insert_line") else -1
            return Insert(insert.new_string, line)
        case "rethink":
            return Rethink(message.rethink.new_memory)
        case "create":
            return Create(message.create.file_text, message.create.description)
        case "rename":
            rename = message.rename
            description = rename.description if rename.HasField("description") else None
            return Rename(label_of(rename.new_label), description)
        case "patch":
            return Patch(message.patch.patch)
        case _:
            return Delete()


def _check_texts(checks: Checks, message: pb.EditBlockRequest, verb: str) -> None:
    """Checks the texts of the verb, and that a rename has a new label or description."""
    for field, value in getattr(message, verb).ListFields():
        if isinstance(value, str):
            max_chars = {"description": MAX_DESCRIPTION_CHARS, "new_label": MAX_NAME_CHARS}
            checks.text(value, f"{verb}.{field.name}", most=max_chars.get(field.name, MAX_LIMIT))
    if verb == "rename" and not message.rename.ListFields():
        checks.fail("rename", "needs a new label or a new description")


def block_to_proto(block: Block) -> pb.Block:
    """Returns a block as a proto."""
    return pb.Block(
        id=block.id,
        label=block.label,
        value=block.value,
        description=block.description,
        limit=block.limit,
        read_only=block.read_only,
        revision=block.revision,
        metadata=dict(block.metadata),
        agent_ids=block.agent_ids,
        create_time=stamp(block.create_time),
        update_time=stamp(block.update_time),
        delete_time=None if block.delete_time is None else stamp(block.delete_time),
        taint=labels_to_proto(block.taint),
    )


def change_to_proto(change: Change) -> pb.BlockChange:
    """Returns a changed block as a proto."""
    return pb.BlockChange(
        block=block_to_proto(change.block), diff=change.diff, operation=change.operation
    )


def edited_to_proto(edited: Edited) -> pb.EditBlockResponse:
    """Returns the result of an edit as a response."""
    return pb.EditBlockResponse(
        block=block_to_proto(edited.block),
        diff=edited.diff,
        message=edited.message,
        changes=[change_to_proto(change) for change in edited.changes],
        merged=edited.merged,
    )


def updated_to_proto(updated: Updated) -> pb.UpdateBlockResponse:
    """Returns the result of an update as a response."""
    return pb.UpdateBlockResponse(block=block_to_proto(updated.block), merged=updated.merged)


def stamp(time: datetime) -> Timestamp:
    """Returns a time as a proto."""
    message = Timestamp()
    message.FromDatetime(time)
    return message
