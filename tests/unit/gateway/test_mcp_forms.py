"""The form for an MCP server: its fields, and the server that it returns."""

from __future__ import annotations

import pytest

from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.gateway.console.forms import FormFields
from strata.gateway.console.mcp_forms import filled_form, server_in, without_credentials
from strata.protocol.errors import InvalidArgumentError

KEY = "k3y-0123456789"
PROGRAM = pb.McpServer(
    name="pets",
    transport=pb.MCP_TRANSPORT_STDIO,
    command=["/bin/pets", "--token", KEY, "-c", "first line\nsecond line", " ", "--level=2"],
    environment={"PETS_KEY": KEY, "LEVEL": "2", "TEXT": "a\nb", "EMPTY": ""},
    environment_secrets={"TOKEN": "PETS_TOKEN"},
    call_timeout_seconds=7,
    max_concurrent_calls=3,
    disabled=True,
)
OVER_HTTP = pb.McpServer(
    name="shop",
    transport=pb.MCP_TRANSPORT_STREAMABLE_HTTP,
    url=f"https://shop.example/mcp?apikey={KEY}%2Babc&user=ada",
    headers={"X-Api-Token": KEY, "X-Login": f"Token {KEY}", "X-Team": "garden"},
    oauth=True,
    oauth_client=pb.McpOAuthClient(issuer="https://login.example", client_id="strata"),
)


def changed(server: pb.McpServer, **fields: str) -> pb.McpServer:
    """Returns the server that results from a form with changed fields."""
    form = filled_form(server)
    return server_in(
        FormFields({**form.fields, **{name: [text] for name, text in fields.items()}}), server
    )


@pytest.mark.parametrize("server", [PROGRAM, OVER_HTTP], ids=["program", "http"])
def test_an_unchanged_form_changes_nothing(server: pb.McpServer) -> None:
    form = filled_form(server)
    assert KEY not in str(form.fields)
    assert KEY not in str(without_credentials(server))
    sent = server_in(form, server)
    sent.name, sent.transport = server.name, server.transport
    assert sent == server


def test_a_credential_placeholder_is_replaced_within_changed_text() -> None:
    line = filled_form(OVER_HTTP).text("url")
    assert line.endswith("?apikey=[secret apikey]&user=ada")
    moved = changed(OVER_HTTP, url=line.replace("shop.example", "store.example"))
    assert moved.url == OVER_HTTP.url.replace("shop.example", "store.example")
    renamed = changed(OVER_HTTP, headers="X-Key: [secret X-Api-Token]")
    assert dict(renamed.headers) == {"X-Key": KEY}
    program = changed(PROGRAM, command="/bin/pets\n--token=[secret --token]")
    assert list(program.command) == ["/bin/pets", f"--token={KEY}"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"headers": "X-New: [secret X-New]"}, "server.headers"),
        ({"url": "https://shop.example/[secret other]"}, "server.url"),
        ({"headers": ": value"}, "server.headers"),
        ({"max_calls": "many"}, "server.max_concurrent_calls"),
    ],
)
def test_an_unknown_placeholder_is_refused(fields: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        changed(OVER_HTTP, **fields)
    assert [violation.field for violation in refusal.value.violations] == [named]
