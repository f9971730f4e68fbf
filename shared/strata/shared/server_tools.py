"""Wildcard names for all tools of an MCP server, such as ``files__*``."""

from __future__ import annotations

ALL_TOOLS = "__*"
"""Suffix after the name of the server."""


def server_of(name: str) -> str | None:
    """Returns the name of the server whose tools a wildcard name covers; None for a single tool."""
    server = name.removesuffix(ALL_TOOLS)
    return server if server and server != name else None
