"""MCP servers: list, add, check, change, their tools, remove."""

from __future__ import annotations

from starlette.responses import Response

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.gateway.console.form_pages import FormPage, check_unchanged
from strata.gateway.console.forms import FormFields
from strata.gateway.console.mcp_forms import (
    REQUEST_FIELDS,
    TRANSPORTS,
    filled_form,
    server_in,
    state_of,
    transport_in,
    without_credentials,
)
from strata.gateway.console.visits import ViewRoute, Visit
from strata.protocol.errors import StrataError
from strata.shared.ids import new_id
from strata.shared.turn_texts import whole_arguments

_PAGE = 100
_NEW = FormPage("mcp/list.html", REQUEST_FIELDS)
_CHANGE = FormPage("mcp/edit.html", REQUEST_FIELDS)


async def list_servers(visit: Visit) -> Response:
    """Lists MCP servers, with a form to add one."""
    form = FormFields({"request_id": [new_id("console")]})
    return _NEW.show(visit, form, **await _listing(visit))


async def add_server(visit: Visit) -> Response:
    """Adds a server from the form; one that does not answer is added too."""
    form = visit.form
    try:
        server = server_in(form)
        server.name, server.transport = form.text("name").strip(), transport_in(form)
        request = pb.AddMcpServerRequest(request_id=form.text("request_id"), server=server)
        response = await visit.services.mcp.AddMcpServer(request)
    except StrataError as error:
        return _NEW.show_again(visit, error, **await _listing(visit))
    return visit.go_to(f"/mcp/{response.server.id}")


async def _listing(visit: Visit) -> dict[str, object]:
    """Returns the values of the page with the list of servers, without its form."""
    listing = await visit.services.mcp.ListMcpServers(
        pb.ListMcpServersRequest(page_size=_PAGE, page_token=visit.query("page"))
    )
    return {
        "servers": [without_credentials(server) for server in listing.servers],
        "next_page": listing.next_page_token,
        "transports": list(TRANSPORTS),
    }


async def show_server(visit: Visit) -> Response:
    """Shows a server with all its known tools."""
    server = await server_of(visit)
    listing = await visit.services.mcp.ListMcpTools(
        pb.ListMcpToolsRequest(
            mcp_server_id=server.id, page_size=_PAGE, page_token=visit.query("page")
        )
    )
    return visit.page(
        "mcp/server.html",
        server=without_credentials(server),
        tools=listing.tools,
        tool_ids={tool.name: tool.id for tool in server.tools},
        next_page=listing.next_page_token,
        changed=pb.MCP_TOOL_STATE_CHANGED,
        usable=pb.MCP_TOOL_STATE_APPROVED,
        schema=whole_arguments,
    )


async def edit_server(visit: Visit) -> Response:
    """Shows the form that changes how a server is reached and used."""
    server = await server_of(visit)
    return _CHANGE.show(visit, filled_form(server), server=server)


async def update_server(visit: Visit) -> Response:
    """Changes a server, unless it was changed elsewhere since the form was opened."""
    stored = await server_of(visit)
    try:
        check_unchanged(visit.form.text("state"), state_of(stored), "MCP server")
        request = pb.UpdateMcpServerRequest(
            mcp_server_id=stored.id, server=server_in(visit.form, stored)
        )
        await visit.services.mcp.UpdateMcpServer(request)
    except StrataError as error:
        return _CHANGE.show_again(visit, error, server=stored)
    return visit.go_to(f"/mcp/{stored.id}")


async def server_of(visit: Visit) -> pb.McpServer:
    """Returns the server in the path of a request.

    Raises:
        NotFoundError: There is no such server in the project of the key.
    """
    request = pb.GetMcpServerRequest(mcp_server_id=visit.argument("mcp_server_id"))
    server: pb.McpServer = (await visit.services.mcp.GetMcpServer(request)).server
    return server


async def check_server(visit: Visit) -> Response:
    """Contacts a server and reads its tools again."""
    server_id = visit.argument("mcp_server_id")
    request = pb.RefreshMcpServerRequest(mcp_server_id=server_id)
    await visit.services.mcp.RefreshMcpServer(request)
    return visit.go_to(f"/mcp/{server_id}")


async def approve_tool(visit: Visit) -> Response:
    """Approves the new definition of a changed tool."""
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
    ViewRoute("/mcp/{mcp_server_id}/edit", edit_server),
    ViewRoute("/mcp/{mcp_server_id}/edit", update_server, "POST"),
    ViewRoute("/mcp/{mcp_server_id}/check", check_server, "POST"),
    ViewRoute("/mcp/{mcp_server_id}/approve", approve_tool, "POST"),
    ViewRoute("/mcp/{mcp_server_id}/remove", remove_server, "POST"),
)
