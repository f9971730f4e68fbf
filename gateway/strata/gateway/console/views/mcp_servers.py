"""MCP servers: list, add, check, their tools, remove."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.gateway.console.form_values import whole_number
from strata.gateway.console.visits import Form, ViewRoute, Visit
from strata.protocol.errors import FieldViolation, InvalidArgumentError
from strata.shared.ids import new_id
from strata.shared.turn_texts import whole_arguments

_PAGE = 100
_TRANSPORTS: Mapping[str, pb.McpTransport.ValueType] = {
    "streamable_http": pb.MCP_TRANSPORT_STREAMABLE_HTTP,
    "sse": pb.MCP_TRANSPORT_SSE,
    "stdio": pb.MCP_TRANSPORT_STDIO,
}
_NOT_ADDED = "The MCP server cannot be added."


async def list_servers(visit: Visit) -> Response:
    """Lists MCP servers, with a form to add one."""
    listing = await visit.services.mcp.ListMcpServers(
        pb.ListMcpServersRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return visit.page(
        "mcp/list.html",
        servers=listing.servers,
        next_page=listing.next_page_token,
        transports=list(_TRANSPORTS),
        request_id=new_id("console"),
    )


async def add_server(visit: Visit) -> Response:
    """Adds a server from the form; one that does not answer is added too."""
    form = visit.form
    transport = form.text("transport")
    if transport not in _TRANSPORTS:
        raise _refusal("transport", f"{transport!r} is not one of {', '.join(_TRANSPORTS)}")
    server = pb.McpServer(
        name=form.text("name").strip(),
        transport=_TRANSPORTS[transport],
        url=form.text("url").strip(),
        command=_lines(form, "command"),
        bearer_secret=form.text("bearer_secret").strip(),
        headers=_pairs(form, "headers", ":"),
        header_secrets=_pairs(form, "header_secrets", ":"),
        environment=_pairs(form, "environment", "="),
        environment_secrets=_pairs(form, "environment_secrets", "="),
        call_timeout_seconds=whole_number(
            form.text("call_timeout"), "call_timeout_seconds", _NOT_ADDED
        ),
    )
    request = pb.AddMcpServerRequest(request_id=form.text("request_id"), server=server)
    added = await visit.services.mcp.AddMcpServer(request)
    return visit.go_to(f"/mcp/{added.server.id}")


def _lines(form: Form, field: str) -> list[str]:
    return [line for line in form.text(field).split("\n") if line.strip()]


def _pairs(form: Form, field: str, separator: str) -> dict[str, str]:
    pairs = {}
    for line in _lines(form, field):
        name, separated, value = line.partition(separator)
        if not separated or not name.strip():
            raise _refusal(field, f"each line is a name, {separator!r} and a value")
        pairs[name.strip()] = value.strip()
    return pairs


def _refusal(field: str, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(_NOT_ADDED, violations=[FieldViolation(field, problem)])


async def show_server(visit: Visit) -> Response:
    """Shows a server with all tools that it was seen to have."""
    server_id = visit.argument("mcp_server_id")
    server = (
        await visit.services.mcp.GetMcpServer(pb.GetMcpServerRequest(mcp_server_id=server_id))
    ).server
    listing = await visit.services.mcp.ListMcpTools(
        pb.ListMcpToolsRequest(
            mcp_server_id=server_id, page_size=_PAGE, page_token=visit.query("page")
        )
    )
    return visit.page(
        "mcp/server.html",
        server=server,
        tools=listing.tools,
        tool_ids={tool.name: tool.id for tool in server.tools},
        next_page=listing.next_page_token,
        changed=pb.MCP_TOOL_STATE_CHANGED,
        usable=pb.MCP_TOOL_STATE_APPROVED,
        schema=whole_arguments,
    )


async def check_server(visit: Visit) -> Response:
    """Contacts a server and reads its tools again."""
    server_id = visit.argument("mcp_server_id")
    request = pb.RefreshMcpServerRequest(mcp_server_id=server_id)
    await visit.services.mcp.RefreshMcpServer(request)
    return visit.go_to(f"/mcp/{server_id}")


async def approve_tool(visit: Visit) -> Response:
    """Approves what a changed tool says of itself now."""
    server_id = visit.argument("mcp_server_id")
    request = pb.ApproveMcpToolRequest(
        mcp_server_id=server_id, name=visit.form.text("name"), version=visit.form.text("version")
    )
    await visit.services.mcp.ApproveMcpTool(request)
    return visit.go_to(f"/mcp/{server_id}")


async def remove_server(visit: Visit) -> Response:
    """Removes a server with its tools."""
    request = pb.RemoveMcpServerRequest(mcp_server_id=visit.argument("mcp_server_id"))
    await visit.services.mcp.RemoveMcpServer(request)
    return visit.go_to("/mcp")


VIEWS = (
    ViewRoute("/mcp", list_servers),
    ViewRoute("/mcp", add_server, "POST"),
    ViewRoute("/mcp/{mcp_server_id}", show_server),
    ViewRoute("/mcp/{mcp_server_id}/check", check_server, "POST"),
    ViewRoute("/mcp/{mcp_server_id}/approve", approve_tool, "POST"),
    ViewRoute("/mcp/{mcp_server_id}/remove", remove_server, "POST"),
)
