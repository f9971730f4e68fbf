"""Plain-text credentials in the configuration of an MCP server."""

from __future__ import annotations

import pytest

from strata.tool_execution.convert.mcp import server_to_proto
from strata.tool_execution.domain.mcp import McpServer, Transport

KEY = "k3y-0123456789+abc"
PROGRAM = "/usr/bin/pets"


def program(*arguments: str, **environment: str) -> McpServer:
    command = (PROGRAM, *arguments)
    return McpServer("mcp_server-1", "pets", Transport.STDIO, command, environment)


def over_http(url: str, **headers: str) -> McpServer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return McpServer("mcp_server-1", "pets", Transport.STREAMABLE_HTTP, url=url, headers=named)


@pytest.mark.parametrize(
    "server",
    [
        program(GITHUB_TOKEN=KEY),
        program(PGPASS=KEY),
        program(DATABASE_URL=f"postgresql://pets:{KEY}@db.example.org/pets"),
        program("--api-key", KEY),
        program(f"--password={KEY}"),
        program(f"SECRET={KEY}", "--verbose"),
        program("--database", f"postgresql://pets:{KEY}@db.example.org/pets"),
        over_http("https://mcp.example.org/mcp?apikey=k3y-0123456789%2Babc&user=ada"),
        over_http("https://mcp.example.org/mcp", X_Auth_Token=KEY),
        over_http("https://mcp.example.org/mcp", X_Auth=f"Token {KEY}"),
    ],
    ids=lambda server: (*server.command, *server.environment, server.url, *server.headers)[-1],
)
def test_a_credential_is_shown_only_to_keys_with_access_to_secrets(
    server: McpServer,
) -> None:
    assert any(KEY in value for value in server.plain_credentials.values())
    shown = server_to_proto(server, with_credentials=True)
    assert shown.command == list(server.command)
    assert (shown.url, shown.environment) == (server.url, server.environment)
    assert shown.headers == server.headers
    hidden = str(server_to_proto(server, with_credentials=False))
    assert "k3y-0123456789" not in hidden
    assert "[secret " in hidden


def test_fields_that_are_not_credentials_are_shown_to_every_key() -> None:
    for server in (
        program("--root", "/srv/papers", "--verbose", LANG="en_US.UTF-8", KEYBOARD="dvorak-layout"),
        over_http("https://mcp.example.org/mcp?user=ada-lovelace", X_Tenant="example-tenant"),
    ):
        assert server.plain_credentials == {}
        shown = server_to_proto(server, with_credentials=False)
        assert shown == server_to_proto(server, with_credentials=True)
