"""An MCP server built with the official SDK.

python mcp_sdk_server.py stdio | sse | streamable-http [PORT]
"""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def shout(words: str) -> str:
    """Says it loudly."""
    if not words:
        raise ValueError("nothing to say")
    return words.upper()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run(sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]))  # type: ignore[call-overload]
