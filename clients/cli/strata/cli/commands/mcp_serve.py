"""``strata mcp serve``: offers the memory of an agent to MCP clients."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from typing import Annotated

import typer

from strata.cli.agent_names import complete_agent
from strata.cli.failures import UsageError
from strata.cli.options import GatewayOptions, online
from strata.cli.output import note
from strata.cli.settings import CliSettings

_HTTP = "HTTP"


@online
def serve(
    connection: GatewayOptions,
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            autocompletion=complete_agent,
            metavar="AGENT",
            help="Name or id of the agent.",
        ),
    ],
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Offer only tools that read the memory.")
    ] = False,
    http: Annotated[
        int | None,
        typer.Option(
            "--http",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve streamable HTTP on this port, 0 for any free one.",
            rich_help_panel=_HTTP,
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Address to listen on; if others can reach it, STRATA_MCP_TOKEN must be set.",
            rich_help_panel=_HTTP,
        ),
    ] = "127.0.0.1",
    allow_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A host name that clients may use, besides HOST and loopback; may be repeated.",
            rich_help_panel=_HTTP,
        ),
    ] = None,
) -> None:
    """Serve the memory of an agent to an MCP client, such as an editor or another agent.

    Uses standard input and output, unless --http is given.
    Clients can read memory blocks and subscribe to them, search conversations, archival memory
    and files, and edit blocks; with --read-only, they cannot edit.
    Over HTTP they must send the token of STRATA_MCP_TOKEN, or the one printed at the start.
    """
    token = _token(http, host, allow_hosts)
    # The SDK takes a second to import, so options are checked before.
    from strata.cli.mcp_server.http import listen, serve_http, url_of  # noqa: PLC0415
    from strata.cli.mcp_server.memory import open_memory  # noqa: PLC0415
    from strata.cli.mcp_server.stdio import serve_stdio  # noqa: PLC0415
    from strata.shared.agent_mcp.server import build_server  # noqa: PLC0415

    async def main() -> None:
        memory = await open_memory(connection.target, agent)
        only_reads = read_only or not memory.may_write
        if not memory.may_write and not read_only:
            note("The API key may not write: the memory is served read-only.")
        server = build_server(memory, read_only=only_reads, one_connection=http is None)
        if http is None:
            # An orderly shutdown would wait for the thread that reads standard input.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if sys.stdin.isatty():
                note("This command is meant to be started by an MCP client. Ctrl-C ends it.")
            await serve_stdio(server)
            return
        with listen(host, http) as listening:
            url = url_of(host, listening.getsockname()[1])
            note(f"Serving the memory of {memory.agent_name} at {url}")
            if not CliSettings().mcp_token:
                note(f"Token until the server stops: {token}")
            await serve_http(server, listening, token=token, names=[host, *(allow_hosts or [])])

    asyncio.run(main())


def _token(http: int | None, host: str, allow_hosts: list[str] | None) -> str:
    """Returns the bearer token for clients over HTTP; empty without HTTP.

    Raises:
        UsageError: The options contradict each other, or STRATA_MCP_TOKEN is invalid.
    """
    if http is None:
        if host != "127.0.0.1" or allow_hosts:
            raise UsageError("--host and --allow-host need --http PORT.")
        return ""
    from strata.cli.mcp_server.http import check_token, is_loopback  # noqa: PLC0415 - the SDK

    chosen = CliSettings().mcp_token
    if chosen:
        check_token(chosen)
    elif not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines. Set STRATA_MCP_TOKEN to a secret of at"
            " least 16 characters, which clients send as bearer token."
        )
    return chosen or secrets.token_urlsafe(32)
