"""Names that stand for all tools of an MCP server, such as ``files__*``."""

from __future__ import annotations

ALL_TOOLS = "__*"
"""Suffix after the name of the server."""

MAX_SERVER_TOOLS = 128
"""Maximum number of tools that all such names of one agent may stand for together."""


def server_of(name: str) -> str | None:
    """Returns the name of the server whose tools `name` stands for; None for a single tool."""
    server = name.removesuffix(ALL_TOOLS)
    return server if server and server != name else None
