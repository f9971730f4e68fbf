"""Finds MCP servers by name or id."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.cli.client import GatewayClient, item_named
from strata.protocol.errors import Reason

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="Name or id of the server.")]


async def server_named(client: GatewayClient, name_or_id: str) -> pb.McpServer:
    """Returns an MCP server by name or by id, without its tools.

    Raises:
        NotFoundError: There is none (``MCP_SERVER_NOT_FOUND``).
    """
    server: pb.McpServer = await item_named(
        client.mcp.ListMcpServers,
        pb.ListMcpServersRequest(),
        "servers",
        name_or_id,
        kind="MCP server",
        command="strata mcp servers list",
        reason=Reason.MCP_SERVER_NOT_FOUND,
    )
    return server
