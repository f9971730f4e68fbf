"""Look-up of MCP servers by name or id."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.cli.client import GatewayClient
from strata.protocol.errors import NotFoundError, Reason

_PAGE_SIZE = 500
ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="Name or id of the server.")]


async def named(client: GatewayClient, name_or_id: str) -> pb.McpServer:
    """Returns the server with a name or an id.

    Raises:
        NotFoundError: There is none.
    """
    request = pb.ListMcpServersRequest(page_size=_PAGE_SIZE)
    while True:
        page = await client.mcp.ListMcpServers(request)
        for server in page.servers:
            if name_or_id in (server.id, server.name):
                return server
        request.page_token = page.next_page_token
        if not page.next_page_token:
            raise NotFoundError(
                f'There is no MCP server "{name_or_id}". List them with: strata mcp servers list',
                reason=Reason.MCP_SERVER_NOT_FOUND,
            )
