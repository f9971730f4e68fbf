"""Converts returns and errors of tools into MCP results."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types

from strata.cli.failures import error_lines
from strata.cli.output import clipped, safe
from strata.protocol.errors import StrataError

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


def failure_of(error: StrataError) -> types.CallToolResult:
    """Returns the MCP result of a failed call, with the same message as the command line."""
    return types.CallToolResult(content=[types.TextContent(text=explained(error))], is_error=True)


def explained(error: StrataError) -> str:
    """Returns the message of an error with its reason and its invalid fields."""
    # The invalid value in the message may contain surrogates.
    return "\n".join(error_lines(error)).encode(errors="replace").decode()


def editor_of(params: types.InitializeRequestParams | None) -> str:
    """Returns name and version of the MCP client, short and on one line, for histories.

    Args:
        params: How the client introduced itself; None if it did not.
    """
    if params is None:
        return "a client without a name"
    info = params.client_info
    named = clipped(safe(f"{info.title or info.name} {info.version}"), _NAME_CHARS)
    return named or "a client without a name"
