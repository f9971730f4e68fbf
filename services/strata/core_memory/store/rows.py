"""Converts blocks and versions to rows and back."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row

from strata.core_memory.domain.blocks import Authorship, Block, EditorKind, Origin, Version

# All columns of a block `b`.
BLOCK = """
    b.id, b.label, b.value, b.description, b.char_limit, b.read_only, b.revision, b.metadata,
    b.create_time, b.update_time, b.delete_time, b.taint,
    (SELECT coalesce(array_agg(n.agent_id ORDER BY n.position), '{}')
       FROM core_memory.attachments n
      WHERE n.project_id = b.project_id AND n.block_id = b.id) AS agent_ids
"""

BLOCK_COLUMNS = (
    "project_id, id, label, value, description, char_limit, read_only, revision, metadata,"
    " made_for, create_time, update_time, taint"
)
VERSION_COLUMNS = (
    "project_id, block_id, revision, label, value, description, char_limit, read_only, metadata,"
    " operation, agent_id, run_id, step_id, tool_call_id, model, reason, principal, create_time,"
    " editor_kind, base_revision, undoes, taint, tool_name"
)
# The values of a version, from a record of `records`.
VERSION_VALUES = (
    ":project, id, revision, label, value, description, char_limit, read_only, metadata,"
    " operation, by_agent, by_run, by_step, by_call, by_model, reason, principal, version_time,"
    " editor_kind, base_revision, undoes, taint, by_tool"
)
# Changes are bound as one JSON array, so that any number takes one statement.
RECORD = (
    "id text, label text, value text, description text, char_limit integer, read_only boolean,"
    " revision bigint, metadata jsonb, create_time timestamptz, update_time timestamptz,"
    " delete_time timestamptz, operation text, by_agent text, by_run text, by_step text,"
    " by_call text, by_model text, reason text, principal text, version_time timestamptz,"
    " editor_kind text, base_revision bigint, undoes text, taint text[],"
    " by_tool text"
)


def to_block(row: Row[Any]) -> Block:
    """Returns the block of a row of `BLOCK`."""
    return Block(
        id=row.id,
        label=row.label,
        value=row.value,
        description=row.description,
        limit=row.char_limit,
        read_only=row.read_only,
        revision=row.revision,
        create_time=row.create_time,
        update_time=row.update_time,
        metadata=_mapping(row.metadata),
        agent_ids=tuple(row.agent_ids),
        delete_time=row.delete_time,
        taint=tuple(row.taint),
    )


def to_version(row: Row[Any]) -> Version:
    """Returns the version of a row of ``block_versions``."""
    origin = Origin(
        agent_id=row.agent_id,
        run_id=row.run_id,
        step_id=row.step_id,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        model=row.model,
        reason=row.reason,
        kind=EditorKind(row.editor_kind),
    )
    return Version(
        block_id=row.block_id,
        revision=row.revision,
        label=row.label,
        value=row.value,
        description=row.description,
        limit=row.char_limit,
        read_only=row.read_only,
        metadata=_mapping(row.metadata),
        authorship=Authorship(
            row.operation,
            origin,
            row.principal,
            row.create_time,
            row.base_revision,
            row.undoes,
        ),
        taint=tuple(row.taint),
    )


def records(*changes: tuple[Block, Authorship]) -> str:
    """Returns blocks with their authorships as a JSON array of `RECORD` objects."""
    return json.dumps([_record(*change) for change in changes], ensure_ascii=False)


def _record(block: Block, authorship: Authorship) -> dict[str, Any]:
    origin, deleted = authorship.origin, block.delete_time
    return {
        "id": block.id,
        "label": block.label,
        "value": block.value,
        "description": block.description,
        "char_limit": block.limit,
        "read_only": block.read_only,
        "revision": block.revision,
        "metadata": dict(block.metadata),
        "create_time": block.create_time.isoformat(),
        "update_time": block.update_time.isoformat(),
        "delete_time": None if deleted is None else deleted.isoformat(),
        "operation": authorship.operation,
        "by_agent": origin.agent_id,
        "by_run": origin.run_id,
        "by_step": origin.step_id,
        "by_call": origin.tool_call_id,
        "by_tool": origin.tool_name,
        "by_model": origin.model,
        "reason": origin.reason,
        "principal": authorship.principal,
        "version_time": authorship.time.isoformat(),
        "editor_kind": origin.kind,
        "base_revision": authorship.base_revision,
        "undoes": authorship.undoes,
        "taint": block.taint,
    }


def _mapping(stored: Any) -> dict[str, str]:
    # Textual statements return jsonb as text, typed ones as an object.
    loaded: dict[str, str] = json.loads(stored) if isinstance(stored, str) else stored
    return loaded
