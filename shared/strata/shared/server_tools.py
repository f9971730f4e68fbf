"""Wildcard names for all tools of an MCP server, such as ``files__*``."""

from __future__ import annotations

ALL_TOOLS = "__*"
"""Suffix after the name of the server."""

MAX_SERVER_TOOLS = 128
"""Maximum number of tools that all wildcard names of one agent may cover together."""


def server_of(name: str) -> str | None:
    """Returns the name of the server whose tools a wildcard name covers; None for a single tool."""
    server = name.removesuffix(ALL_TOOLS)
    return server if server and server != name else None
