"""Converts returns of tools into MCP results, and errors into MCP errors."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from strata.protocol.errors import InvalidArgumentError, NotFoundError, StrataError
from strata.shared.agent_mcp.memory import ConnectedAgent
from strata.shared.json_text import encodable_text
from strata.shared.one_line import clipped, one_line

ToolReturn = dict[str, Any] | str

_NAME_CHARS = 120


def result_of(tool_return: ToolReturn) -> types.CallToolResult:
    """Returns the MCP result for a text, or for an object, which is also its JSON as text."""
    if isinstance(tool_return, str):
        return types.CallToolResult(content=[types.TextContent(text=tool_return)])
    text = json.dumps(tool_return, ensure_ascii=False)
    return types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=tool_return
    )


def protocol_error(memory: ConnectedAgent, error: StrataError) -> MCPError:
    """Returns the error of the protocol for a request, other than a tool call, that failed."""
    of_request = isinstance(error, NotFoundError | InvalidArgumentError)
    code = types.INVALID_PARAMS if of_request else types.INTERNAL_ERROR
    return MCPError(code, encodable_text(memory.explained(error)))


def failure_of(explanation: str) -> types.CallToolResult:
    """Returns the MCP result of a failed call."""
    return types.CallToolResult(
        content=[types.TextContent(text=encodable_text(explanation))], is_error=True
    )


def editor_of(params: types.InitializeRequestParams | None, default: str) -> str:
    """Returns name and version of the MCP client, short and on one line, for histories.

    Args:
        params: How the client introduced itself; None if it did not.
        default: The name in that case.
    """
    if params is None:
        return default
    info = params.client_info
    name = clipped(one_line(f"{info.title or info.name} {info.version}"), _NAME_CHARS)
    return name or default
