"""Converts blocks, edits and renderings to protos."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.commands import Change, Edited, Released, Updated
from strata.core_memory.domain.compilation import Compiled
from strata.core_memory.domain.prompt_limits import PromptLimit
from strata.shared.convert.messages import labels_to_proto


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


def compiled_to_proto(compiled: Compiled) -> context_pb.CompileResponse:
    """Returns the memory section as a response, or `not_changed` if the caller has it."""
    last = compiled.last_modified
    return context_pb.CompileResponse(
        not_changed=compiled.section is None,
        revision=compiled.revision,
        memory_section=compiled.section or "",
        last_modified_time=None if last is None else stamp(last),
        block_chars=compiled.sizes,
        block_revisions={block.label: block.revision for block in compiled.blocks},
        has_folders=compiled.has_folders,
        tainted_blocks=[
            context_pb.TaintedBlock(label=block.label, taint=labels_to_proto(block.taint))
            for block in compiled.blocks
            if block.taint and compiled.shown
        ],
    )


def prepared_to_proto(blocks: Sequence[Block]) -> context_pb.PrepareAgentResponse:
    """Returns the blocks of a prepared agent."""
    return context_pb.PrepareAgentResponse(blocks=[block_to_proto(block) for block in blocks])


def limited_to_proto(before: PromptLimit) -> context_pb.LimitPromptResponse:
    """Returns the previous limit of an agent as a response."""
    response = context_pb.LimitPromptResponse()
    if before.bytes is not None:
        response.previous_limit.bytes = before.bytes
        response.previous_limit.line_numbers = before.line_numbers
        response.previous_limit.files_bytes = before.files_bytes
        response.previous_limit.max_files_open = before.max_open
        response.previous_limit.per_file_view_window_char_limit = before.view_chars
    return response


def released_to_proto(released: Released) -> context_pb.ReleaseAgentResponse:
    """Returns the counts of deleted and detached blocks as a response."""
    return context_pb.ReleaseAgentResponse(
        deleted_blocks=released.deleted, detached_blocks=released.detached
    )


def stamp(time: datetime) -> Timestamp:
    """Returns a time as a proto."""
    message = Timestamp()
    message.FromDatetime(time)
    return message
