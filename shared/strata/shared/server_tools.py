"""Wildcard names for all tools of an MCP server, such as ``files__*``."""

from __future__ import annotations

from collections.abc import Collection

from strata.shared.tool_catalogue import MAX_OFFERED_TOOLS

ALL_TOOLS = "__*"
"""Suffix after the name of the server."""


def server_of(name: str) -> str | None:
    """Returns the name of the server whose tools a wildcard name covers; None for a single tool."""
    server = name.removesuffix(ALL_TOOLS)
    return server if server and server != name else None


def space_for_server_tools(names: Collection[str]) -> int:
    """Returns how many tools of whole servers are offered in addition to the single ones.

    Args:
        names: All names in a turn: those of single tools, the file tools, and wildcard names.
    """
    single = {name for name in names if server_of(name) is None}
    return max(0, MAX_OFFERED_TOOLS - len(single))
