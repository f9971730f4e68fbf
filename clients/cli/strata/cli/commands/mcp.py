"""``strata mcp``: adds and manages MCP servers and their tools; with serve, login and logout."""

from __future__ import annotations

from typing import Annotated

import typer

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.cli.client import GatewayClient, first_of, new_request_id
from strata.cli.commands import mcp_login, mcp_serve
from strata.cli.commands.mcp_lookup import ServerArgument, server_named
from strata.cli.confirmation import YesOption, confirm
from strata.cli.failures import EXIT_FAILURE, UsageError
from strata.cli.mcp_options import AuthenticationOptions, VariableOptions
from strata.cli.options import GatewayOptions, JsonOption, LimitOption, online
from strata.cli.output import note, print_fields, print_json, print_listing, print_text, safe, when
from strata.protocol.errors import NotFoundError, Reason
from strata.shared.convert.enums import enum_name
from strata.shared.one_line import clipped

app = typer.Typer(
    help="Use tools of MCP servers, and serve an agent's memory to MCP clients.",
    no_args_is_help=True,
    add_completion=False,
)
servers = typer.Typer(
    help="Add, show, change and remove MCP servers.", no_args_is_help=True, add_completion=False
)
app.add_typer(servers, name="servers")
app.command("serve")(mcp_serve.serve)
app.command("login")(mcp_login.login)
app.command("logout")(mcp_login.logout)

_DESCRIPTION_CHARS = 80
_PAGE_SIZE = 500
_NO_AUTHENTICATION = AuthenticationOptions()
_NO_VARIABLES = VariableOptions()


@servers.command("add", context_settings={"ignore_unknown_options": True})
@online
def add(
    connection: GatewayOptions,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name; its tools are called NAME__TOOL.")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...]", help="The program to start, with arguments."),
    ] = None,
    url: Annotated[str, typer.Option("--url", help="Its URL, if it is not a local program.")] = "",
    sse: Annotated[
        bool, typer.Option("--sse", help="Use the older transport: HTTP with server-sent events.")
    ] = False,
    authentication: AuthenticationOptions = _NO_AUTHENTICATION,
    variables: VariableOptions = _NO_VARIABLES,
    timeout: Annotated[
        int, typer.Option("--timeout", min=1, help="Seconds that a call may take.")
    ] = 30,
    calls: Annotated[
        int, typer.Option("--calls", min=1, help="Maximum number of concurrent calls.")
    ] = 4,
    as_json: JsonOption = False,
) -> None:
    """Add a server: a local program, or a URL."""
    if bool(url) == bool(command):
        raise UsageError("Give --url URL, or a program after --.")
    transport = pb.MCP_TRANSPORT_STDIO
    if url:
        transport = pb.MCP_TRANSPORT_SSE if sse else pb.MCP_TRANSPORT_STREAMABLE_HTTP
    request = pb.AddMcpServerRequest(
        request_id=new_request_id(),
        server=pb.McpServer(
            name=name,
            transport=transport,
            command=command or [],
            url=url,
            call_timeout_seconds=timeout,
            max_concurrent_calls=calls,
        ),
    )
    authentication.apply(request.server)
    variables.apply(request.server)

    async def put(client: GatewayClient) -> pb.McpServer:
        return (await client.mcp.AddMcpServer(request)).server

    added = connection.run(put)
    _show(added, as_json)
    # A server that needs a sign-in cannot answer yet.
    if not added.healthy and not authentication.sign_in:
        note(
            f"The server is stored, but it cannot be used: {safe(added.error)}. When that is"
            f" fixed: strata mcp servers refresh {added.name}; to remove it: strata mcp servers"
            f" delete {added.name}"
        )
        raise typer.Exit(EXIT_FAILURE)


@servers.command("list")
@online
def list_servers(
    connection: GatewayOptions, limit: LimitOption = 200, as_json: JsonOption = False
) -> None:
    """List the servers of the project."""

    async def read(client: GatewayClient) -> pb.ListMcpServersResponse:
        return await first_of(
            client.mcp.ListMcpServers, pb.ListMcpServersRequest(), "servers", limit
        )

    listing = connection.run(read)
    rows = [
        (
            server.name,
            _transport(server),
            _health(server),
            when(server.last_contact_time),
            server.id,
        )
        for server in listing.servers
    ]
    print_listing(
        listing,
        ["name", "transport", "health", "last contact", "id"],
        rows,
        empty="No MCP servers. Add one with: strata mcp servers add NAME --url URL",
        as_json=as_json,
    )


@servers.command("show")
@online
def show(connection: GatewayOptions, server: ServerArgument, as_json: JsonOption = False) -> None:
    """Show a server, its tools and its errors."""

    async def read(client: GatewayClient) -> pb.McpServer:
        mcp_server = await server_named(client, server)
        request = pb.GetMcpServerRequest(mcp_server_id=mcp_server.id)
        return (await client.mcp.GetMcpServer(request)).server

    _show(connection.run(read), as_json)


@servers.command("update")
@online
def update(
    connection: GatewayOptions,
    server: ServerArgument,
    url: Annotated[str | None, typer.Option("--url", help="Its new address.")] = None,
    bearer: Annotated[
        str | None,
        typer.Option(
            "--bearer", help="Name of the secret that contains its bearer token; empty: none."
        ),
    ] = None,
    timeout: Annotated[
        int | None, typer.Option("--timeout", min=1, help="Seconds that a call may take.")
    ] = None,
    calls: Annotated[
        int | None, typer.Option("--calls", min=1, help="Maximum number of concurrent calls.")
    ] = None,
    enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Whether agents may use its tools."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the connection of a server, and read its tools again.

    Settings without an option do not change. To change its program, headers or sign-in, delete
    it and add it again.
    """
    changes = {
        "url": url,
        "bearer_secret": bearer,
        "call_timeout_seconds": timeout,
        "max_concurrent_calls": calls,
        "disabled": None if enabled is None else not enabled,
    }
    changes = {field: value for field, value in changes.items() if value is not None}
    if not changes:
        raise UsageError(
            "Nothing to change: give --url, --bearer, --timeout, --calls, --enable or --disable."
        )

    async def put(client: GatewayClient) -> pb.McpServer:
        mcp_server = await server_named(client, server)
        # The update replaces the whole configuration, so send the other settings as they were.
        for field, value in changes.items():
            setattr(mcp_server, field, value)
        request = pb.UpdateMcpServerRequest(mcp_server_id=mcp_server.id, server=mcp_server)
        return (await client.mcp.UpdateMcpServer(request)).server

    changed = connection.run(put)
    _show(changed, as_json)
    if not changed.healthy and not changed.disabled and not changed.oauth:
        note(f"The server cannot be used: {safe(changed.error)}")
        raise typer.Exit(EXIT_FAILURE)


@servers.command("refresh")
@online
def refresh(
    connection: GatewayOptions, server: ServerArgument, as_json: JsonOption = False
) -> None:
    """Read the tools of a server again."""

    async def read(client: GatewayClient) -> pb.RefreshMcpServerResponse:
        mcp_server = await server_named(client, server)
        request = pb.RefreshMcpServerRequest(mcp_server_id=mcp_server.id)
        return await client.mcp.RefreshMcpServer(request)

    answer = connection.run(read)
    if as_json:
        print_json(answer)
        return
    _show(answer.server, as_json=False)
    for name in answer.changed_tools:
        note(f"{safe(name)} has changed. Look at it with: strata mcp tools {answer.server.name}")


@servers.command("delete")
@online
def delete(connection: GatewayOptions, server: ServerArgument, yes: YesOption = False) -> None:
    """Remove a server with its tools."""

    async def remove(client: GatewayClient) -> str:
        mcp_server = await server_named(client, server)
        confirm(
            f"Remove {mcp_server.name} with its tools?",
            yes=yes,
            otherwise="Agents lose these tools.",
        )
        await client.mcp.RemoveMcpServer(pb.RemoveMcpServerRequest(mcp_server_id=mcp_server.id))
        return mcp_server.name

    typer.echo(f"Removed {safe(connection.run(remove))}.")


@app.command("tools")
@online
def tools(
    connection: GatewayOptions,
    server: ServerArgument,
    limit: LimitOption = 500,
    as_json: JsonOption = False,
) -> None:
    """List all tools of a server; for unusable tools, with the reason."""

    async def read(client: GatewayClient) -> pb.ListMcpToolsResponse:
        mcp_server = await server_named(client, server)
        request = pb.ListMcpToolsRequest(mcp_server_id=mcp_server.id)
        return await first_of(client.mcp.ListMcpTools, request, "tools", limit)

    listing = connection.run(read)
    rows = [
        (tool.tool_name, _state(tool), clipped(tool.reason or tool.description, _DESCRIPTION_CHARS))
        for tool in listing.tools
    ]
    print_listing(
        listing,
        ["name", "state", "description or problem"],
        rows,
        empty="The server has no tools.",
        as_json=as_json,
    )


@app.command("approve")
@online
def approve(
    connection: GatewayOptions,
    server: ServerArgument,
    name: Annotated[str, typer.Argument(metavar="TOOL", help="Its name, here or at the server.")],
    yes: YesOption = False,
) -> None:
    """Show the new definition of a changed tool, and approve it."""

    async def change(client: GatewayClient) -> pb.McpTool:
        mcp_server = await server_named(client, server)
        request = pb.ListMcpToolsRequest(mcp_server_id=mcp_server.id)
        listed = (await first_of(client.mcp.ListMcpTools, request, "tools", _PAGE_SIZE * 2)).tools
        chosen = [tool_ for tool_ in listed if name in (tool_.name, tool_.tool_name)]
        if not chosen:
            raise NotFoundError(
                f'{mcp_server.name} has no tool "{name}". List them with: strata mcp tools '
                f"{mcp_server.name}",
                reason=Reason.TOOL_NOT_FOUND,
            )
        tool = chosen[0]
        if tool.state == pb.MCP_TOOL_STATE_CHANGED:
            note("Approved definition:")
            print_text(f"{tool.approved_description}\n{tool.approved_parameters_json}")
            note("New definition:")
            print_text(f"{tool.description}\n{tool.parameters_json}")
            confirm(
                f"Approve {tool.tool_name}?", yes=yes, otherwise="Models get the new definition."
            )
        approval = pb.ApproveMcpToolRequest(
            mcp_server_id=mcp_server.id, name=tool.name, version=tool.version
        )
        return (await client.mcp.ApproveMcpTool(approval)).tool

    typer.echo(f"{safe(connection.run(change).tool_name)} is approved.")


def _show(server: pb.McpServer, as_json: bool) -> None:
    if as_json:
        print_json(server)
        return
    print_fields(
        [
            ("name", server.name),
            ("id", server.id),
            ("transport", _transport(server)),
            ("command", " ".join(server.command)),
            ("url", server.url),
            ("OAuth issuer", server.client_credentials.issuer or server.oauth_client.issuer),
            ("OAuth client", server.client_credentials.client_id or server.oauth_client.client_id),
            ("signed in", _signed_in(server)),
            ("health", _health(server)),
            ("error", server.error),
            ("last contact", when(server.last_contact_time)),
            ("timeout", f"{server.call_timeout_seconds} seconds"),
            ("calls at once", str(server.max_concurrent_calls)),
            ("tools", ", ".join(tool.name for tool in server.tools)),
            *((f"not {name}", reason) for name, reason in sorted(server.quarantined_tools.items())),
        ]
    )


def _signed_in(server: pb.McpServer) -> str:
    if not server.oauth:
        return ""
    if not server.HasField("sign_in"):
        return f"no; sign in with: strata mcp login {server.name}"
    sign_in = server.sign_in
    signer = f"{sign_in.principal}, {when(sign_in.sign_in_time)}, at {sign_in.issuer}"
    return f"{signer}; no longer valid: {sign_in.problem}" if sign_in.problem else signer


def _transport(server: pb.McpServer) -> str:
    return enum_name(pb.McpTransport, server.transport)


def _state(tool: pb.McpTool) -> str:
    return enum_name(pb.McpToolState, tool.state)


def _health(server: pb.McpServer) -> str:
    if server.disabled:
        return "disabled"
    return "healthy" if server.healthy else "unhealthy"
