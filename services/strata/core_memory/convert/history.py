"""Converts versions, blame and reverts between protos and the domain."""

from __future__ import annotations

from collections.abc import Sequence

from strata.api.core_memory.v1 import block_service_pb2 as pb
from strata.core_memory.convert.blocks import (
    EDITOR_KINDS,
    MAX_NAME_CHARS,
    MAX_REASON_CHARS,
    actor,
    block_to_proto,
    change_to_proto,
    stamp,
)
from strata.core_memory.domain.blocks import EditSelection, Origin, Version
from strata.core_memory.domain.commands import Change, RevertBlock
from strata.core_memory.domain.versions.blame import LineOrigin
from strata.shared.checks import Checks
from strata.shared.convert.messages import labels_to_proto
from strata.shared.db import Page

_MAX_REVISION = 2**62


def to_versions(message: pb.ListBlockVersionsRequest) -> str:
    """Returns the block of a ListBlockVersions request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id")
    checks.done()
    return message.block_id


def to_diff(message: pb.DiffBlockRequest) -> tuple[str, int, int]:
    """Returns the block and the two revisions of a DiffBlock request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id")
    for field in ("from_revision", "to_revision"):
        checks.number(getattr(message, field), field, least=0, most=_MAX_REVISION)
    checks.done()
    return message.block_id, message.from_revision, message.to_revision


def to_blame(message: pb.BlameBlockRequest) -> tuple[str, int]:
    """Returns the block and the revision of a BlameBlock request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id")
    checks.number(message.revision, "revision", least=0, most=_MAX_REVISION)
    checks.done()
    return message.block_id, message.revision


def to_revert(message: pb.RevertBlockRequest) -> RevertBlock:
    """Returns the command of a RevertBlock request."""
    checks = Checks()
    checks.id(message.block_id, "block", "block_id", optional=True)
    checks.id(message.agent_id, "agent", "agent_id", optional=True)
    checks.text(message.reason, "reason", most=MAX_REASON_CHARS)
    _check_target(checks, message)
    since = checks.optional_time(message, "since_time")
    checks.done()
    return RevertBlock(
        actor=actor(reason=message.reason),
        undo=EditSelection(message.block_id, message.run_id, message.agent_id, since),
        revision=message.revision,
        to_revision=message.to_revision,
        validate_only=message.validate_only,
    )


def _check_target(checks: Checks, message: pb.RevertBlockRequest) -> None:
    match message.WhichOneof("target"):
        case None:
            checks.fail("target", "is required: revision, to_revision, run_id or since_time")
        case "run_id":
            checks.text(message.run_id, "run_id", most=MAX_NAME_CHARS, required=True)
        case "since_time":
            if not (message.block_id or message.agent_id):
                checks.fail("since_time", "needs block_id or agent_id")
        case target:
            checks.number(getattr(message, target), target, least=1, most=_MAX_REVISION)
            if not message.block_id:
                checks.fail("block_id", f"is required with {target}")
            if message.agent_id:
                checks.fail("agent_id", f"cannot be combined with {target}, which names one edit")


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
        create_time=stamp(authorship.time),
        description=version.description,
        limit=version.limit,
        read_only=version.read_only,
        metadata=dict(version.metadata),
        base_revision=authorship.base_revision,
        taint=labels_to_proto(version.taint),
    )


def blame_to_proto(page: Page[tuple[int, LineOrigin]]) -> pb.BlameBlockResponse:
    """Returns numbered lines with the versions that wrote them."""
    lines = [_line_to_proto(number, origin) for number, origin in page.rows]
    return pb.BlameBlockResponse(lines=lines, next_page_token=page.next_page_token)


def reverted_to_proto(changes: Sequence[Change]) -> pb.RevertBlockResponse:
    """Returns the changes of a revert as a response."""
    return pb.RevertBlockResponse(
        blocks=[block_to_proto(change.block) for change in changes],
        changes=[change_to_proto(change) for change in changes],
    )


def _line_to_proto(number: int, line: LineOrigin) -> pb.BlameLine:
    authorship = line.authorship
    return pb.BlameLine(
        line=number,
        text=line.text,
        revision=line.revision,
        origin=_origin_to_proto(authorship.origin),
        create_time=stamp(authorship.time),
        principal=authorship.principal,
        operation=authorship.operation,
    )


def _origin_to_proto(origin: Origin) -> pb.EditOrigin:
    return pb.EditOrigin(
        agent_id=origin.agent_id,
        run_id=origin.run_id,
        step_id=origin.step_id,
        tool_call_id=origin.tool_call_id,
        tool_name=origin.tool_name,
        model=origin.model,
        reason=origin.reason,
        kind=EDITOR_KINDS.to_proto[origin.kind],
    )
