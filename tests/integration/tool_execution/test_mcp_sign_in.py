"""Signing in to MCP servers: a real one, a real authorization server, and a person's browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from doubles.oauth_server import Vault
from doubles.sign_in_server import SignInServer, browse
from inner_services import InnerServices
from mcp_support import Mcp, serving_http
from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError
from strata.protocol.errors import Reason as Why
from strata.shared.clock import SystemClock

pytestmark = pytest.mark.asyncio(loop_scope="session")
HTTP = pb.MCP_TRANSPORT_STREAMABLE_HTTP
REDIRECT = "http://127.0.0.1:9999/callback"


@dataclass
class Place:
    """A project, an authorization server, and an MCP server that requires its tokens."""

    mcp: Mcp
    authority: SignInServer
    vault: Vault
    url: str

    async def add(self, **oauth: str) -> pb.McpServer:
        """Adds the server."""
        client = pb.McpOAuthClient(**oauth) if oauth else None
        return await self.mcp.add(
            "vault", url=self.url, transport=HTTP, oauth=True, oauth_client=client
        )

    async def begin(self, server: pb.McpServer) -> pb.BeginMcpSignInResponse:
        """Starts the sign-in."""
        request = pb.BeginMcpSignInRequest(mcp_server_id=server.id, redirect_uri=REDIRECT)
        answer: pb.BeginMcpSignInResponse = await self.mcp.servers.BeginMcpSignIn(request)
        return answer

    async def complete(self, server: pb.McpServer, back: dict[str, str]) -> pb.McpServer:
        """Completes the sign-in with the redirect of the browser."""
        request = pb.CompleteMcpSignInRequest(
            mcp_server_id=server.id,
            state=back["state"],
            code=back["code"],
            issuer=back.get("iss", ""),
        )
        signed: pb.McpServer = (await self.mcp.servers.CompleteMcpSignIn(request)).server
        return signed

    async def sign_in(self, server: pb.McpServer) -> pb.McpServer:
        """Signs in completely."""
        begun = await self.begin(server)
        return await self.complete(server, await browse(begun.authorization_url))

    async def look(self) -> str:
        """Calls the server's tool; returns the text for the model."""
        return str((await self.mcp.run("vault__look"))["result"])

    @property
    def grants(self) -> list[str]:
        """Returns the grant types of the token requests."""
        return [form["grant_type"] for form in self.authority.asked]


@pytest_asyncio.fixture(loop_scope="session")
async def place(services: InnerServices, tmp_path: Path) -> AsyncIterator[Place]:
    authority = SignInServer()
    vault = Vault(authority)
    async with (
        serving_http(authority.app()) as issuer,
        serving_http(vault.app()) as root,
        Mcp(services, tmp_path) as mcp,
    ):
        authority.url = issuer
        vault.advertised.append(issuer)
        yield Place(mcp, authority, vault, f"{root}/mcp")


def refused(words: str) -> Any:
    return pytest.raises(FailedPreconditionError, match=words)


async def test_a_person_signs_in_and_agents_use_the_server(
    place: Place, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server = await place.add(scope="gold:read")
    assert not server.healthy
    assert "nobody has signed in to it" in server.error
    assert not server.HasField("sign_in")
    begun = await place.begin(server)
    assert (begun.issuer, begun.scope) == (place.authority.url, "gold:read")
    [asked] = place.authority.registered
    assert asked["redirect_uris"] == [REDIRECT]
    back = await browse(begun.authorization_url)
    assert back["state"] == begun.state
    signed = await place.complete(server, back)
    assert signed.healthy, signed.error
    assert (signed.sign_in.issuer, signed.sign_in.problem) == (place.authority.url, "")
    assert signed.sign_in.principal
    assert await place.look() == "gold, and the token [secret access token]"
    [form] = place.authority.asked
    assert (form["grant_type"], form["resource"]) == ("authorization_code", place.url)
    # Each state can be used once.
    with refused("does not exist"):
        await place.complete(server, back)
    logged = "".join(capfd.readouterr()) + caplog.text + str(signed)
    for secret in (*place.authority.secrets, back["code"], form["code_verifier"]):
        assert secret not in logged


async def test_a_token_that_ends_or_is_refused_is_replaced_within_the_call(place: Place) -> None:
    place.authority.lifetime = 1
    await place.sign_in(await place.add())
    place.authority.lifetime = 3600
    assert (await place.look()).startswith("gold")
    assert place.grants[-1] == "refresh_token"
    before = len(place.authority.asked)
    place.authority.valid.clear()
    texts = await asyncio.gather(*(place.look() for _ in range(4)))
    assert {text.partition(",")[0] for text in texts} == {"gold"}
    # One new token for all of them: each refresh token can be used once.
    assert place.grants[before:] == ["refresh_token"]


async def test_revoked_sign_in_is_reported_and_can_be_renewed(place: Place) -> None:
    server = await place.sign_in(await place.add())
    place.authority.valid.clear()
    place.authority.refreshing.clear()
    message = await place.mcp.refused("vault__look")
    assert "was not run" in message
    assert "sign in to it again" in message
    request = pb.GetMcpServerRequest(mcp_server_id=server.id)
    shown = (await place.mcp.servers.GetMcpServer(request)).server
    assert "has revoked" in shown.sign_in.problem
    asked = len(place.authority.asked)
    # A refused refresh token is not sent again.
    assert not (await place.mcp.refresh(server)).server.healthy
    assert len(place.authority.asked) == asked
    signed = await place.sign_in(server)
    assert (signed.healthy, signed.sign_in.problem) == (True, "")
    assert (await place.look()).startswith("gold")


async def test_temporary_failures_of_an_authorization_server_keep_the_sign_in(
    place: Place,
) -> None:
    server = await place.sign_in(await place.add())
    place.authority.valid.clear()
    place.authority.down = True
    message = await place.mcp.refused("vault__look")
    assert "503" in message
    assert "on fire" not in message
    place.authority.down = False
    assert (await place.mcp.refresh(server)).server.healthy
    assert (await place.look()).startswith("gold")


async def test_forgetting_a_sign_in_deletes_its_tokens(place: Place) -> None:
    server = await place.sign_in(await place.add())
    request = pb.ForgetMcpSignInRequest(mcp_server_id=server.id)
    for _ in range(2):
        shown = (await place.mcp.servers.ForgetMcpSignIn(request)).server
        assert not shown.HasField("sign_in")
    assert "nobody has signed in" in await place.mcp.refused("vault__look")


async def test_tokens_are_not_sent_to_another_url(place: Place) -> None:
    server = await place.sign_in(await place.add())
    thief = Vault(place.authority)
    async with serving_http(thief.app()) as root:
        changed = pb.McpServer(url=f"{root}/mcp", oauth=True)
        request = pb.UpdateMcpServerRequest(mcp_server_id=server.id, server=changed)
        after = (await place.mcp.servers.UpdateMcpServer(request)).server
        assert not after.HasField("sign_in")
        assert "nobody has signed in" in after.error


async def test_pending_sign_in_is_dropped_when_client_changes(place: Place) -> None:
    server = await place.add()
    begun = await place.begin(server)
    for scope in ("", "gold:read"):
        client = pb.McpOAuthClient(scope=scope)
        changed = pb.McpServer(
            url=place.url, oauth=True, oauth_client=client, max_concurrent_calls=9
        )
        await place.mcp.servers.UpdateMcpServer(
            pb.UpdateMcpServerRequest(mcp_server_id=server.id, server=changed)
        )
        back = await browse(begun.authorization_url)
        if scope:
            with refused("does not exist"):
                await place.complete(server, back)
        else:
            # A parameter that does not concern sign-in has no effect.
            assert (await place.complete(server, back)).healthy
            begun = await place.begin(server)


async def test_a_manually_registered_client_is_used(place: Place) -> None:
    place.authority.registers = False
    server = await place.add()
    with refused("does not support client registration"):
        await place.begin(server)
    await place.mcp.remove(server.id)
    place.authority.clients["by hand"] = "s3cret"
    known = {"issuer": place.authority.url, "client_id": "by hand", "client_secret": "BY_HAND"}
    server = await place.add(**known)
    with refused("BY_HAND is not stored"):
        await place.begin(server)
    await place.mcp.secret("BY_HAND", "s3cret")
    assert (await place.sign_in(server)).healthy
    place.authority.valid.clear()
    assert (await place.look()).startswith("gold")


async def test_authorization_response_from_another_issuer_is_refused(place: Place) -> None:
    server = await place.add()
    for back in ({"iss": "https://evil.example"}, {"iss": ""}):
        begun = await place.begin(server)
        with refused("different authorization server"):
            await place.complete(server, {**await browse(begun.authorization_url), **back})
    begun = await place.begin(server)
    answer = await browse(begun.authorization_url)
    with refused("does not exist"):
        await place.complete(server, {**answer, "state": "x" * 43})
    with refused(r"invalid_grant") as caught:
        await place.complete(server, {**answer, "code": "forged"})
    assert caught.value.reason is Why.MCP_SIGN_IN_FAILED
    assert "forged" not in str(caught.value)
    assert place.grants == ["authorization_code"]


async def test_a_pending_sign_in_expires_after_ten_minutes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await place.add()
    long_ago = SystemClock().now() - timedelta(minutes=11)
    monkeypatch.setattr(SystemClock, "now", lambda _: long_ago)
    begun = await place.begin(server)
    monkeypatch.undo()
    with refused("older than ten minutes"):
        await place.complete(server, await browse(begun.authorization_url))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"issuer": "https://other.example"}, "not the expected one"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"registration_endpoint": "http://169.254.169.254/register"}, "cannot be asked"),
        ({"registration_endpoint": "http://10.0.0.1/register"}, "cannot be asked"),
        ({"token_endpoint": 7}, "No authorization server"),
    ],
)
async def test_authorization_server_with_wrong_metadata_is_refused(
    place: Place, metadata: dict[str, Any], words: str
) -> None:
    place.authority.metadata = metadata
    server = await place.add()
    with refused(words):
        await place.begin(server)
    assert place.authority.asked == []


async def test_another_authorization_server_than_the_configured_one_is_not_used(
    place: Place,
) -> None:
    server = await place.add(issuer="http://127.0.0.1:9/")
    with refused("does not name the configured issuer"):
        await place.begin(server)
    assert place.authority.registered == []


async def test_invalid_sign_in_configuration_names_the_field(place: Place) -> None:
    server = await place.add()
    for uri in ("", "http://example.org/x", "https://a.example/x?y", "javascript:1", "x" * 600):
        with pytest.raises(InvalidArgumentError) as caught:
            await place.mcp.servers.BeginMcpSignIn(
                pb.BeginMcpSignInRequest(mcp_server_id=server.id, redirect_uri=uri)
            )
        assert [violation.field for violation in caught.value.violations] == ["redirect_uri"]
    with pytest.raises(InvalidArgumentError) as caught:
        await place.complete(server, {"state": "", "code": "a b"})
    assert {violation.field for violation in caught.value.violations} == {"state", "code"}
    plain = await place.mcp.add("plain", url=place.url, transport=HTTP)
    with refused("has no sign-in"):
        await place.begin(plain)
    for wrong in ({"client_id": "x"}, {"client_secret": "KEY"}, {"scope": "a  b"}):
        with pytest.raises(InvalidArgumentError):
            await place.mcp.add("wrong", url=place.url, transport=HTTP, oauth=True,
                                oauth_client=pb.McpOAuthClient(**wrong))  # fmt: skip
    with pytest.raises(InvalidArgumentError):
        await place.mcp.add("wrong", command=["x"], oauth=True)
