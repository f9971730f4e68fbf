"""What a client is told: results, and what went wrong."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types

from strata.cli.failures import error_lines
from strata.cli.output import clipped, safe
from strata.shared.errors import StrataError

Told = dict[str, Any] | str

_NAME_CHARS = 120


def result_of(told: Told) -> types.CallToolResult:
    """Returns what a tool gives: a text, or an object, which is its JSON as a text, too."""
    if isinstance(told, str):
        return types.CallToolResult(content=[types.TextContent(text=told)])
    text = json.dumps(told, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=told)


def failure_of(error: StrataError) -> types.CallToolResult:
    """Returns a failed call, in the words that a person at the command line would read."""
    return types.CallToolResult(content=[types.TextContent(text=explained(error))], is_error=True)


def explained(error: StrataError) -> str:
    """Returns the message of an error with its reason and its wrong fields."""
    # What was wrong may be that it is no text.
    return "\n".join(error_lines(error)).encode(errors="replace").decode()


def editor_of(params: types.InitializeRequestParams | None) -> str:
    """Returns who a client says that it is; short and on one line, for histories.

    Args:
        params: How the client introduced itself; None if it did not.
    """
    if params is None:
        return "a client without a name"
    info = params.client_info
    named = clipped(safe(f"{info.title or info.name} {info.version}"), _NAME_CHARS)
    return named or "a client without a name"
