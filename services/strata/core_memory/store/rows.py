"""Blocks and versions between the domain and rows."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Row

from strata.core_memory.domain.blocks import Authorship, Block, Origin, Version

# Everything of a block `b`.
BLOCK = """
    b.id, b.label, b.value, b.description, b.char_limit, b.read_only, b.revision, b.metadata,
    b.create_time, b.update_time,
    (SELECT coalesce(array_agg(n.agent_id ORDER BY n.position), '{}')
       FROM core_memory.attachments n
      WHERE n.project_id = b.project_id AND n.block_id = b.id) AS agent_ids
"""

BLOCK_COLUMNS = (
    "project_id, id, label, value, description, char_limit, read_only, revision, metadata,"
    " made_for, create_time, update_time"
)
VERSION_COLUMNS = (
    "project_id, block_id, revision, label, value, description, char_limit, read_only, metadata,"
    " operation, agent_id, run_id, step_id, tool_call_id, model, reason, principal, create_time"
)
# Of a version, from the parameters `authorship_parameters`.
AUTHORSHIP_VALUES = (
    ":operation, :by_agent, :by_run, :by_step, :by_call, :by_model, :reason, :principal, :time"
)
# Blocks to insert travel as one JSON array: one statement whatever their number.
RECORD = (
    "id text, label text, value text, description text, char_limit integer, read_only boolean,"
    " revision bigint, metadata jsonb, create_time timestamptz, update_time timestamptz"
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
    )


def to_version(row: Row[Any]) -> Version:
    """Returns the version of a row of ``block_versions``."""
    origin = Origin(
        agent_id=row.agent_id,
        run_id=row.run_id,
        step_id=row.step_id,
        tool_call_id=row.tool_call_id,
        model=row.model,
        reason=row.reason,
    )
    return Version(
        block_id=row.block_id,
        revision=row.revision,
        label=row.label,
        value=row.value,
        authorship=Authorship(row.operation, origin, row.principal, row.create_time),
    )


def to_record(block: Block) -> dict[str, Any]:
    """Returns a block as a JSON object with the fields of `RECORD`."""
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
    }


def records(*blocks: Block) -> str:
    """Returns blocks as a JSON array of `RECORD` objects."""
    return json.dumps([to_record(block) for block in blocks], ensure_ascii=False)


def authorship_parameters(authorship: Authorship) -> dict[str, Any]:
    """Returns the parameters of `AUTHORSHIP_VALUES`."""
    origin = authorship.origin
    return {
        "operation": authorship.operation,
        "by_agent": origin.agent_id,
        "by_run": origin.run_id,
        "by_step": origin.step_id,
        "by_call": origin.tool_call_id,
        "by_model": origin.model,
        "reason": origin.reason,
        "principal": authorship.principal,
        "time": authorship.time,
    }


def _mapping(stored: Any) -> dict[str, str]:
    # Textual statements get jsonb as text, typed ones as an object.
    loaded: dict[str, str] = json.loads(stored) if isinstance(stored, str) else stored
    return loaded
