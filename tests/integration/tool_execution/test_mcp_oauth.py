"""MCP servers that require tokens of an authorization server, both real local servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from doubles.oauth_server import Authority, Vault
from inner_services import InnerServices
from mcp_support import Mcp, serving_http
from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.protocol.errors import InvalidArgumentError

pytestmark = pytest.mark.asyncio(loop_scope="session")
HTTP = pb.MCP_TRANSPORT_STREAMABLE_HTTP


@dataclass
class Place:
    """A project, an authorization server, and an MCP server that requires its tokens."""

    mcp: Mcp
    authority: Authority
    vault: Vault
    url: str

    async def add(self, name: str = "vault", **credentials: str) -> pb.McpServer:
        """Adds the server with the client's credentials."""
        server = {
            "issuer": self.authority.url,
            "client_id": self.authority.client_id,
            "client_secret": "CLIENT_SECRET",
            **credentials,
        }
        return await self.mcp.add(
            name, url=self.url, transport=HTTP, client_credentials=pb.McpClientCredentials(**server)
        )

    async def look(self) -> str:
        """Calls the server's tool; returns the text for the model."""
        return str((await self.mcp.run("vault__look"))["result"])


@pytest_asyncio.fixture(loop_scope="session")
async def place(services: InnerServices, tmp_path: Path) -> AsyncIterator[Place]:
    authority = Authority()
    vault = Vault(authority)
    async with (
        serving_http(authority.app()) as issuer,
        serving_http(vault.app()) as root,
        Mcp(services, tmp_path) as mcp,
    ):
        await mcp.secret("CLIENT_SECRET", authority.secret)
        authority.url = issuer
        vault.advertised.append(issuer)
        yield Place(mcp, authority, vault, f"{root}/mcp")


async def test_a_client_gets_an_access_token_that_is_never_shown(
    place: Place, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server = await place.add(scope="gold:read")
    assert server.healthy, server.error
    text = await place.look()
    assert text == "gold, and the token [secret access token]"
    [asked] = place.authority.asked
    assert asked["grant_type"] == "client_credentials"
    assert (asked["scope"], asked["resource"]) == ("gold:read", place.url)
    shown = (await place.mcp.refresh(server)).server
    assert shown.client_credentials.scope == "gold:read"
    logged = "".join(capfd.readouterr()) + caplog.text + str(shown)
    for secret in (*place.authority.issued, place.authority.secret):
        assert secret not in logged


async def test_a_token_that_has_ended_is_replaced_within_the_call(place: Place) -> None:
    await place.add()
    place.authority.valid.clear()
    texts = await asyncio.gather(*(place.look() for _ in range(4)))
    assert {text.partition(",")[0] for text in texts} == {"gold"}
    # One new token for all of them, and no call is made twice.
    assert (len(place.authority.issued), place.vault.opened) == (2, 4)


async def test_an_expired_token_is_renewed(place: Place) -> None:
    place.authority.lifetime = -1
    await place.add()
    before = len(place.authority.issued)
    place.authority.lifetime = 3600
    assert (await place.look()).startswith("gold")
    assert len(place.authority.issued) == before + 1


async def test_wrong_credentials_are_reported_without_their_value(place: Place) -> None:
    server = await place.add()
    await place.mcp.secret("CLIENT_SECRET", "another secret than that")
    message = await place.mcp.refused("vault__look")
    assert "was not run" in message
    assert "signing in with OAuth failed" in message
    assert "(invalid_client)" in message
    assert "another secret" not in message
    assert place.vault.opened == 0
    refreshed = (await place.mcp.refresh(server)).server
    assert not refreshed.healthy
    assert "invalid_client" in refreshed.error
    assert "another secret" not in refreshed.error


async def test_a_client_that_is_refused_later_gets_an_error(place: Place) -> None:
    await place.add()
    place.authority.secret = "changed at the authorization server"
    place.authority.valid.clear()
    message = await place.mcp.refused("vault__look")
    assert "was not run" in message
    assert "(invalid_client)" in message
    assert place.vault.opened == 0


async def test_credentials_are_sent_to_no_other_authorization_server(place: Place) -> None:
    other = Authority()
    async with serving_http(other.app()) as url:
        other.url = url
        place.vault.advertised[:] = [url]
        server = await place.add()
        assert not server.healthy
        assert "signing in with OAuth failed" in server.error
        assert "issuer" in server.error
        # Nor are credentials sent to a server that claims the issuer of the right one.
        other.url = place.authority.url
        again = (await place.mcp.refresh(server)).server
        assert not again.healthy
        assert other.asked == place.authority.asked == []


@pytest.mark.parametrize("where", ["metadata", "authorization server"])
async def test_metadata_at_a_private_address_is_not_fetched(place: Place, where: str) -> None:
    if where == "metadata":
        place.vault.metadata_url = "http://169.254.169.254/latest/meta-data"
    else:
        place.vault.advertised[:] = ["http://169.254.169.254"]
    server = await place.add()
    assert not server.healthy
    assert "private or reserved" in server.error
    assert place.authority.asked == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("issuer", ""),
        ("issuer", "ftp://example.org"),
        ("issuer", "https://example.org/?a=b"),
        ("client_id", ""),
        ("client_id", "x" * 513),
        ("client_secret", ""),
        ("scope", " a"),
        ("scope", 'a"b'),
    ],
)
async def test_invalid_client_credentials_are_refused_by_field(
    place: Place, field: str, value: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await place.add(**{field: value})
    assert f"server.client_credentials.{field}" in {
        violation.field for violation in caught.value.violations
    }


async def test_client_credentials_exclude_other_authentication(place: Place) -> None:
    credentials = pb.McpClientCredentials(
        issuer="http://127.0.0.1:9", client_id="c", client_secret="CLIENT_SECRET"
    )
    for fields, named in (
        ({"url": "https://127.0.0.1/", "transport": HTTP}, ".issuer"),
        ({"url": place.url, "transport": HTTP, "bearer_secret": "CLIENT_SECRET"}, ""),
        ({"command": ["x"], "transport": pb.MCP_TRANSPORT_STDIO}, ""),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            await place.mcp.add("wrong", client_credentials=credentials, **fields)
        violated = {violation.field for violation in caught.value.violations}
        assert f"server.client_credentials{named}" in violated, json.dumps(sorted(violated))


async def test_issuer_at_a_forbidden_address_is_refused(place: Place) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await place.add(issuer="http://10.0.0.1")
    assert "private or reserved" in caught.value.message
