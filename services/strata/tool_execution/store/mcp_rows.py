"""Converts MCP servers and their tools to rows and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from strata.tool_execution.domain.mcp import (
    ClientCredentials,
    CompletedSignIn,
    McpServer,
    McpTool,
    OAuthClient,
    ToolState,
    Transport,
)

CONFIGURATION = {
    "command": "text[]",
    "environment": "json",
    "environment_secrets": "json",
    "url": "text",
    "headers": "json",
    "header_secrets": "json",
    "bearer_secret": "text",
    "client_credentials": "json",
    "oauth": "json",
    "enabled": "boolean",
    "call_timeout": "integer",
    "max_calls": "integer",
}
"""The columns of a server that its configuration may change, with their types."""
NEW_SERVER = {"id": "text", "name": "text", "transport": "text", **CONFIGURATION}
"""The columns of a new server, for `server_values`."""
SERVER = {
    **NEW_SERVER,
    "error": "text",
    "last_contact_time": "timestamptz",
    "create_time": "timestamptz",
    "update_time": "timestamptz",
}
"""The columns of a server for `to_server`."""
REPORT = {
    "state": "text",
    "reason": "text",
    "description": "text",
    "parameters": "json",
    "digest": "text",
    "approved_digest": "text",
}
"""The columns of a server's tool that a new listing may change, with their types."""
MCP_TOOL = {"name": "text", "tool_name": "text", **REPORT}
"""The columns of a server's tool, for `mcp_tool_values` and `to_mcp_tool`."""


def server_values(server: McpServer) -> dict[str, Any]:
    """Returns the values of the columns `NEW_SERVER`."""
    return {
        "id": server.id,
        "name": server.name,
        "transport": server.transport.value,
        "command": list(server.command),
        "environment": json.dumps(dict(server.environment)),
        "environment_secrets": json.dumps(dict(server.environment_secrets)),
        "url": server.url,
        "headers": json.dumps(dict(server.headers)),
        "header_secrets": json.dumps(dict(server.header_secrets)),
        "bearer_secret": server.bearer_secret,
        "client_credentials": json.dumps(
            asdict(server.client_credentials) if server.client_credentials else None
        ),
        "oauth": json.dumps(asdict(server.oauth) if server.oauth else None),
        "enabled": server.enabled,
        "call_timeout": server.call_timeout,
        "max_calls": server.max_calls,
    }


def to_server(row: Any) -> McpServer:
    """Returns the server of a row of `SERVER`, with its sign-in if that is in the row."""
    credentials, oauth = json.loads(row.client_credentials), json.loads(row.oauth)
    sign_in = json.loads(getattr(row, "sign_in", None) or "null")
    return McpServer(
        id=row.id,
        name=row.name,
        transport=Transport(row.transport),
        command=tuple(row.command),
        environment=json.loads(row.environment),
        environment_secrets=json.loads(row.environment_secrets),
        url=row.url,
        headers=json.loads(row.headers),
        header_secrets=json.loads(row.header_secrets),
        bearer_secret=row.bearer_secret,
        client_credentials=ClientCredentials(**credentials) if credentials else None,
        oauth=OAuthClient(**oauth) if oauth else None,
        enabled=row.enabled,
        call_timeout=row.call_timeout,
        max_calls=row.max_calls,
        error=row.error,
        last_contact_time=row.last_contact_time,
        create_time=row.create_time,
        update_time=row.update_time,
        sign_in=CompletedSignIn(**{**sign_in, "time": datetime.fromisoformat(sign_in["time"])})
        if sign_in
        else None,
    )


def mcp_tool_values(tool: McpTool) -> dict[str, Any]:
    """Returns the values of the columns `MCP_TOOL`."""
    return {
        "name": tool.name,
        "tool_name": tool.tool_name,
        "state": tool.state.value,
        "reason": tool.reason,
        "description": tool.description,
        "parameters": json.dumps(dict(tool.parameters), ensure_ascii=False),
        "digest": tool.digest,
        "approved_digest": tool.approved_digest,
    }


def to_mcp_tool(row: Any) -> McpTool:
    """Returns the tool of a row of `MCP_TOOL`, with the approved description and schema."""
    changed = row.state == ToolState.CHANGED and row.approved_description is not None
    return McpTool(
        name=row.name,
        tool_name=row.tool_name,
        state=ToolState(row.state),
        reason=row.reason,
        description=row.description,
        parameters=json.loads(row.parameters),
        digest=row.digest,
        approved_digest=row.approved_digest,
        approved=(row.approved_description, json.loads(row.approved_parameters))
        if changed
        else None,
    )
