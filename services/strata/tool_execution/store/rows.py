"""Converts tools to and from database rows, and to and from the text of a stored response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from strata.tool_execution.domain.tools import (
    Effect,
    McpOrigin,
    OwnDefinition,
    Tool,
    ToolType,
)

# The schema is read as text, which keeps the order of its keys for the model.
COLUMNS = (
    "id, name, type, description, source_code, function_name, parameters::text AS parameters,"
    " tags, return_char_limit, default_requires_approval, enable_parallel_execution, effect,"
    " pip_requirements, secret_names, create_time, update_time, mcp_server_id, mcp_name,"
    " mcp_digest, blocked, allowed_hosts"
)
_TIMES = ("create_time", "update_time")


def to_values(tool: Tool) -> dict[str, Any]:
    """Returns the column values of a tool."""
    own = tool.own or OwnDefinition()
    return {
        "id": tool.id,
        "name": tool.name,
        "type": tool.type.value,
        "description": tool.description,
        "source": own.source_code,
        "function": own.function,
        "parameters": json.dumps(tool.parameters, ensure_ascii=False),
        "tags": list(tool.tags),
        "limit": tool.return_char_limit,
        "approval": own.requires_approval,
        "parallel": tool.parallel,
        "effect": tool.effect.value,
        "requirements": list(own.pip_requirements),
        "secrets": list(own.secret_names),
        "hosts": list(own.allowed_hosts),
        "version": tool.version,
    }


def to_tool(row: Any) -> Tool:
    """Returns the tool of a row."""
    return Tool(
        name=row.name,
        description=row.description,
        type=ToolType(row.type),
        parameters=json.loads(row.parameters),
        effect=Effect(row.effect),
        parallel=row.enable_parallel_execution,
        return_char_limit=row.return_char_limit,
        tags=tuple(row.tags),
        own=OwnDefinition(
            id=row.id,
            source_code=row.source_code,
            function=row.function_name,
            requires_approval=row.default_requires_approval,
            pip_requirements=tuple(row.pip_requirements),
            secret_names=tuple(row.secret_names),
            allowed_hosts=tuple(row.allowed_hosts),
            create_time=row.create_time,
            update_time=row.update_time,
            mcp=McpOrigin(row.mcp_server_id, row.mcp_name, row.mcp_digest)
            if row.mcp_server_id
            else None,
            blocked=row.blocked,
        ),
    )


def to_text(tool: Tool) -> str:
    """Returns a tool as text for `from_text`."""
    fields = {key: value for key, value in vars(tool).items() if key in Tool.__dataclass_fields__}
    own = asdict(tool.own or OwnDefinition())
    own.update((key, own[key] and own[key].isoformat()) for key in _TIMES)
    return json.dumps({**fields, "own": own, "explain": None}, ensure_ascii=False)


def from_text(text: str) -> Tool:
    """Returns the tool of a text from `to_text`."""
    fields: dict[str, Any] = json.loads(text)
    own: Mapping[str, Any] = fields["own"]
    times = {key: own[key] and datetime.fromisoformat(own[key]) for key in _TIMES}
    # A stored response may be from a release without allowed_hosts.
    names = ("pip_requirements", "secret_names", "allowed_hosts")
    lists = {key: tuple(own.get(key, ())) for key in names}
    fields.update(
        type=ToolType(fields["type"]),
        effect=Effect(fields["effect"]),
        tags=tuple(fields["tags"]),
        own=OwnDefinition(**{**own, **lists, **times}),
    )
    return Tool(**fields)
