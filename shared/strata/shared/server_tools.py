"""The name by which an agent has all tools of an MCP server: ``files__*``."""

from __future__ import annotations

ALL_TOOLS = "__*"
"""What follows the name of the server."""

MAX_SERVER_TOOLS = 128
"""Most tools that all such names of one agent stand for together."""


def server_of(name: str) -> str | None:
    """Returns the name of the server whose tools `name` stands for; None for a single tool."""
    server = name.removesuffix(ALL_TOOLS)
    return server if server and server != name else None
