"""Commands of ``strata mcp``: what they send and print."""

from __future__ import annotations

import urllib.error
import urllib.request
import webbrowser

import pytest

from command_line import Run
from e2e.cli.scripted import ScriptedGateway
from e2e.cli.scripted_mcp import UNREACHABLE
from strata.api.tool_execution.v1 import mcp_service_pb2 as pb


async def test_a_program_and_a_url_are_added_shown_and_removed(
    strata: Run, gateway: ScriptedGateway
) -> None:
    done = await strata(
        *("mcp", "servers", "add", "files", "--env", "A=b=c", "--calls", "2", "--"),
        *("npx", "-y", "--root=/srv", "server"),
    )
    assert done.code == 0, done
    [files] = gateway.mcp.servers.values()
    assert list(files.command) == ["npx", "-y", "--root=/srv", "server"]
    assert (files.transport, dict(files.environment)) == (pb.MCP_TRANSPORT_STDIO, {"A": "b=c"})
    assert (files.call_timeout_seconds, files.max_concurrent_calls) == (30, 2)
    done = await strata(
        *("mcp", "servers", "add", "wiki", "--url", "https://wiki.example.org/mcp", "--sse"),
        *("--bearer", "TOKEN", "--header-secret", "X-Key=KEY"),
    )
    assert done.code == 0, done
    wiki = list(gateway.mcp.servers.values())[1]
    assert (wiki.transport, wiki.bearer_secret) == (pb.MCP_TRANSPORT_SSE, "TOKEN")
    assert dict(wiki.header_secrets) == {"X-Key": "KEY"}
    shown = (await strata("mcp", "servers", "show", "wiki")).out
    assert "tools: wiki__search" in shown
    assert "not write: it has changed" in shown
    listed = (await strata("mcp", "servers", "list")).out.splitlines()
    assert [row.split("\t")[:3] for row in listed[1:]] == [
        ["files", "stdio", "healthy"],
        ["wiki", "sse", "healthy"],
    ]
    assert (await strata("mcp", "servers", "delete", "wiki", "--yes")).code == 0
    assert list(gateway.mcp.servers.values()) == [files]
    gone = await strata("mcp", "servers", "refresh", "wiki")
    assert gone.code == 1
    assert "MCP_SERVER_NOT_FOUND" in gone.err


async def test_update_keeps_fields_without_an_option(strata: Run, gateway: ScriptedGateway) -> None:
    url = ("--url", "https://wiki.example.org/mcp")
    options = ("--bearer", "TOKEN", "--header-secret", "X-Key=KEY", "--calls", "2")
    await strata("mcp", "servers", "add", "wiki", *url, *options)
    [server] = gateway.mcp.servers.values()
    before = pb.McpServer()
    before.CopyFrom(server)
    done = await strata("mcp", "servers", "update", "wiki", "--timeout", "5", "--disable")
    assert done.code == 0, done
    before.call_timeout_seconds, before.disabled = 5, True
    assert server == before
    done = await strata("mcp", "servers", "update", "wiki", "--bearer", "", "--enable")
    assert (done.code, server.bearer_secret, server.disabled) == (0, "", False)
    done = await strata("mcp", "servers", "update", "wiki", "--url", UNREACHABLE)
    assert done.code == 1
    assert "no server answers at this address" in done.err


async def test_a_changed_tool_is_shown_and_approved_as_it_was_seen(
    strata: Run, gateway: ScriptedGateway
) -> None:
    await strata("mcp", "servers", "add", "wiki", "--url", "https://wiki.example.org/mcp")
    refreshed = await strata("mcp", "servers", "refresh", "wiki")
    assert "write has changed" in refreshed.out + refreshed.err
    rows = (await strata("mcp", "tools", "wiki")).out.splitlines()
    assert [row.split("\t")[:2] for row in rows[1:]] == [
        ["wiki__search", "approved"],
        ["wiki__write", "changed"],
    ]
    done = await strata("mcp", "approve", "wiki", "wiki__write", "--yes")
    assert "Writes otherwise." in done.out
    assert "wiki__write is approved." in done.out
    [approved] = gateway.mcp.approved
    assert (approved.name, approved.version) == ("write", "v2")


async def test_a_server_is_added_with_a_client_of_its_authorization_server(
    strata: Run, gateway: ScriptedGateway
) -> None:
    added = ("mcp", "servers", "add", "wiki", "--url", "https://wiki.example.org/mcp")
    client = ("--oauth-client", "strata", "--oauth-secret", "KEY", "--oauth-scope", "a b")
    assert (await strata(*added, *client)).code == 2
    assert not gateway.mcp.servers
    done = await strata(*added, *client, "--oauth-issuer", "https://login.example.org")
    assert done.code == 0, done
    [wiki] = gateway.mcp.servers.values()
    assert wiki.client_credentials == pb.McpClientCredentials(
        issuer="https://login.example.org", client_id="strata", client_secret="KEY", scope="a b"
    )
    assert "OAuth issuer: https://login.example.org" in done.out


async def test_a_server_is_a_program_or_a_url(strata: Run) -> None:
    for arguments in (["x"], ["x", "--url", "https://x.org", "--", "y"], ["x", "--env", "A"]):
        assert (await strata("mcp", "servers", "add", *arguments)).code == 2


async def wiki(strata: Run) -> None:
    added = ("mcp", "servers", "add", "wiki", "--url", "https://wiki.example.org/mcp", "--sign-in")
    assert (await strata(*added, "--oauth-scope", "read")).code == 0


def visit(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


async def test_sign_in_with_a_browser_completes_at_the_redirect(
    strata: Run, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wiki(strata)
    [server] = gateway.mcp.servers.values()
    assert (server.oauth, server.oauth_client.scope) == (True, "read")
    assert (
        "no; sign in with: strata mcp login wiki"
        in (await strata("mcp", "servers", "show", "wiki")).out
    )
    seen = []

    def browser(url: str) -> bool:
        # Other programs on this machine may call as well, before the answer arrives.
        seen.extend([visit(url.replace("st4te", "forged")), visit(url.replace("callback", "x"))])
        seen.append(visit(url))
        return True

    monkeypatch.setattr(webbrowser, "open", browser)
    done = await strata("mcp", "login", "wiki")
    assert done.code == 0, done
    assert "https://login.example.org asks you to sign in" in done.out + done.err
    assert "Signed in to wiki at https://login.example.org." in done.out
    assert [status for status, _ in seen] == [400, 404, 200]
    [completed] = gateway.mcp.completed
    assert (completed.code, completed.state) == ("c0de", "st4te")
    assert completed.issuer == "https://login.example.org"
    assert "key-1" in (await strata("mcp", "servers", "show", "wiki")).out
    assert "Nobody is signed in to wiki" in (await strata("mcp", "logout", "wiki")).out
    assert not server.HasField("sign_in")


async def test_without_a_browser_the_redirect_address_is_pasted(
    strata: Run, gateway: ScriptedGateway
) -> None:
    await wiki(strata)
    login = ("mcp", "login", "wiki", "--no-browser")
    done = await strata(*login, typed="http://127.0.0.1:1/callback\n")
    assert (done.code, gateway.mcp.completed) == (2, [])
    done = await strata(*login, typed="http://127.0.0.1:1/callback?error=access_denied&state=x\n")
    assert (done.code, gateway.mcp.completed) == (2, [])
    assert "access_denied" in done.err
    done = await strata(*login, typed="http://127.0.0.1:1/callback?code=c%2B1&state=st4te\n")
    assert done.code == 0, done
    [completed] = gateway.mcp.completed
    assert (completed.code, completed.state, completed.issuer) == ("c+1", "st4te", "")


async def test_adding_an_unreachable_server_fails_with_a_message(strata: Run) -> None:
    done = await strata("mcp", "servers", "add", "wiki", "--url", UNREACHABLE)
    assert done.code == 1
    assert "no server answers at this address" in done.err
    assert "strata mcp servers refresh wiki" in done.err
    signing_in = await strata("mcp", "servers", "add", "crm", "--url", UNREACHABLE, "--sign-in")
    assert signing_in.code == 0


async def test_the_tools_of_an_agent_are_listed_with_those_of_whole_servers(
    strata: Run, gateway: ScriptedGateway
) -> None:
    await strata("mcp", "servers", "add", "wiki", "--url", "https://wiki.example.org/mcp")
    await strata("mcp", "servers", "add", "gone", "--url", UNREACHABLE)
    tools = ("--tool", "wiki__*", "--tool", "gone__*", "--tool", "none__*")
    done = await strata("agents", "create", "reader", *tools)
    assert done.code == 0, done
    shown = await strata("agents", "tools", "reader")
    assert shown.code == 0, shown
    rows = [row.split("\t") for row in shown.out.splitlines()[1:]]
    assert ["wiki__search", "wiki__*"] in [[row[0], row[2]] for row in rows]
    assert "wiki__*: write cannot be used: it has changed" in shown.err
    assert (
        "gone__*: the MCP server cannot be reached: no server answers at this address" in shown.err
    )
    assert "none__*: there is no such MCP server" in shown.err
