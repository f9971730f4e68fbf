"""Serves MCP over standard input and output."""

from __future__ import annotations

from typing import Any

from mcp.server import Server
from mcp.server.stdio import stdio_server


async def serve_stdio(server: Server[dict[str, Any]]) -> None:
    """Serves MCP over standard input and output, until standard input ends.

    Meanwhile, other output to standard output is redirected to standard error.
    """
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
