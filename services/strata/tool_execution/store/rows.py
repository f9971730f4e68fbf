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
from strata.tool_execution.store.columns import select_sql

# The columns of `tool_execution.tools`, with their types. Schemas of arguments are json and read as
# text, which keeps the order of their keys for the model.
_IDENTITY = {"id": "text", "name": "text", "type": "text"}
_DEFINITION = {
    "description": "text",
    "source_code": "text",
    "function_name": "text",
    "parameters": "json",
    "tags": "text[]",
    "return_char_limit": "integer",
    "default_requires_approval": "boolean",
    "enable_parallel_execution": "boolean",
    "effect": "text",
    "pip_requirements": "text[]",
    "secret_names": "text[]",
    "allowed_hosts": "text[]",
}
_ORIGIN = {"mcp_server_id": "text", "mcp_name": "text", "mcp_digest": "text"}
_READ = {
    **_IDENTITY,
    **_DEFINITION,
    **_ORIGIN,
    "blocked": "text",
    "create_time": "timestamptz",
    "update_time": "timestamptz",
}
COLUMNS = select_sql(_READ)
"""The columns of a tool for `to_tool`."""
_WITHOUT_SOURCE = {name: kind for name, kind in _READ.items() if name != "source_code"}
COLUMNS_WITHOUT_SOURCE = f"{select_sql(_WITHOUT_SOURCE)}, '' AS source_code"
"""The columns of a tool for `to_tool`, with an empty source."""
CHANGEABLE = {**_DEFINITION, "version": "text"}
"""The columns of a tool that a new definition under its name replaces, with their types."""
NEW_TOOL = {**_IDENTITY, **CHANGEABLE}
"""The columns of a new tool, for `to_values`."""
_SERVER_TOOL = ("description", "parameters", "return_char_limit", "effect", "version")
SERVER_TOOL = {name: NEW_TOOL[name] for name in (*_IDENTITY, *_SERVER_TOOL)} | _ORIGIN
"""The columns of a new tool of an MCP server; the others of `NEW_TOOL` have their defaults."""
_TIMES = ("create_time", "update_time")


def to_values(tool: Tool) -> dict[str, Any]:
    """Returns the values of the columns `NEW_TOOL`."""
    own = tool.own or OwnDefinition()
    return {
        "id": tool.id,
        "name": tool.name,
        "type": tool.type.value,
        "description": tool.description,
        "source_code": own.source_code,
        "function_name": own.function,
        "parameters": json.dumps(tool.parameters, ensure_ascii=False),
        "tags": list(tool.tags),
        "return_char_limit": tool.return_char_limit,
        "default_requires_approval": own.requires_approval,
        "enable_parallel_execution": tool.parallel,
        "effect": tool.effect.value,
        "pip_requirements": list(own.pip_requirements),
        "secret_names": list(own.secret_names),
        "allowed_hosts": list(own.allowed_hosts),
        "version": tool.version,
    }


def to_tool(row: Any) -> Tool:
    """Returns the tool of a row with `COLUMNS`."""
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
