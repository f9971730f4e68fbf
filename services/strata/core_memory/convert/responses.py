"""Blocks, versions and renderings as messages of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.api.core_memory.v1 import context_service_pb2 as context_pb
from strata.core_memory.domain.blocks import Block, Origin, Version
from strata.core_memory.domain.commands import Edited, Released
from strata.core_memory.domain.compilation import Compiled


def block_to_proto(block: Block) -> pb.Block:
    """Returns a block."""
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
        create_time=_stamp(block.create_time),
        update_time=_stamp(block.update_time),
    )


def version_to_proto(version: Version) -> pb.BlockVersion:
    """Returns one entry of a block's history."""
    authorship = version.authorship
    return pb.BlockVersion(
        block_id=version.block_id,
        revision=version.revision,
        value=version.value,
        label=version.label,
        operation=authorship.operation,
        origin=_origin_to_proto(authorship.origin),
        principal=authorship.principal,
        create_time=_stamp(authorship.time),
    )


def edited_to_proto(edited: Edited) -> pb.EditBlockResponse:
    """Returns the outcome of a verb."""
    return pb.EditBlockResponse(
        block=block_to_proto(edited.block), diff=edited.diff, message=edited.message
    )


def compiled_to_proto(compiled: Compiled) -> context_pb.CompileResponse:
    """Returns the memory section, or that it is not changed."""
    last = compiled.last_modified
    return context_pb.CompileResponse(
        not_changed=compiled.section is None,
        revision=compiled.revision,
        memory_section=compiled.section or "",
        last_modified_time=None if last is None else _stamp(last),
        block_chars=compiled.sizes,
    )


def prepared_to_proto(blocks: Sequence[Block]) -> context_pb.PrepareAgentResponse:
    """Returns the blocks of a prepared agent."""
    return context_pb.PrepareAgentResponse(blocks=[block_to_proto(block) for block in blocks])


def released_to_proto(released: Released) -> context_pb.ReleaseAgentResponse:
    """Returns what was released."""
    return context_pb.ReleaseAgentResponse(
        deleted_blocks=released.deleted, detached_blocks=released.detached
    )


def _origin_to_proto(origin: Origin) -> pb.EditOrigin:
    return pb.EditOrigin(
        agent_id=origin.agent_id,
        run_id=origin.run_id,
        step_id=origin.step_id,
        tool_call_id=origin.tool_call_id,
        model=origin.model,
        reason=origin.reason,
    )


def _stamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp
