"""Converts blocks and versions to rows and back."""

from __future__ import annotations

import json
from typing import Any

from strata.core_memory.domain.blocks import Authorship, Block, EditorKind, Origin, Version
from strata.shared.db import Row

# The columns that a block and its versions share, with their types.
_CONTENT = {
    "label": "text",
    "value": "text",
    "description": "text",
    "char_limit": "integer",
    "read_only": "boolean",
    "revision": "bigint",
    "metadata": "jsonb",
    "taint": "text[]",
}
_BLOCK_TIMES = {
    "create_time": "timestamptz",
    "update_time": "timestamptz",
    "delete_time": "timestamptz",
}
# The columns of a version that say how it was made.
_AUTHORSHIP = {
    "operation": "text",
    "agent_id": "text",
    "run_id": "text",
    "step_id": "text",
    "tool_call_id": "text",
    "tool_name": "text",
    "model": "text",
    "reason": "text",
    "principal": "text",
    "editor_kind": "text",
    "base_revision": "bigint",
    "undoes": "text",
}


def content_of(table: str, *, without: str = "") -> str:
    """Returns the columns of `table` that a block and its versions share, as in SQL."""
    return ", ".join(f"{table}.{name}" for name in _CONTENT if name != without)


# Changes are bound as one JSON array, so that any number takes one statement.
RECORD = ", ".join(
    f"{name} {type_}"
    for name, type_ in {
        "id": "text",
        **_CONTENT,
        **_BLOCK_TIMES,
        **_AUTHORSHIP,
        "version_time": "timestamptz",
    }.items()
)
# The columns of a record `g` that an INSERT or UPDATE stores.
BLOCK_COLUMNS = f"project_id, id, {', '.join(_CONTENT)}, made_for, create_time, update_time"
BLOCK_VALUES = f":project, g.id, {content_of('g')}, :made_for, g.create_time, g.update_time"
BLOCK_CHANGES = ", ".join(
    f"{name} = g.{name}" for name in (*_CONTENT, "update_time", "delete_time")
)
VERSION_COLUMNS = (
    f"project_id, block_id, {', '.join(_CONTENT)}, {', '.join(_AUTHORSHIP)}, create_time"
)
VERSION_VALUES = (
    f":project, g.id, {content_of('g')}, {', '.join(f'g.{name}' for name in _AUTHORSHIP)},"
    " g.version_time"
)

# All columns of a block `b`.
BLOCK = f"""
    b.id, {content_of("b")}, b.create_time, b.update_time, b.delete_time,
    (SELECT coalesce(array_agg(n.agent_id ORDER BY n.position), '{{}}')
       FROM core_memory.attachments n
      WHERE n.project_id = b.project_id AND n.block_id = b.id) AS agent_ids
"""


def to_block(row: Row) -> Block:
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


def to_version(row: Row) -> Version:
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
        "agent_id": origin.agent_id,
        "run_id": origin.run_id,
        "step_id": origin.step_id,
        "tool_call_id": origin.tool_call_id,
        "tool_name": origin.tool_name,
        "model": origin.model,
        "reason": origin.reason,
        "principal": authorship.principal,
        "version_time": authorship.time.isoformat(),
        "editor_kind": origin.kind,
        "base_revision": authorship.base_revision,
        "undoes": authorship.undoes,
        "taint": block.taint,
    }


def _mapping(value: Any) -> dict[str, str]:
    # Textual statements return jsonb as text, typed ones as an object.
    loaded: dict[str, str] = json.loads(value) if isinstance(value, str) else value
    return loaded
