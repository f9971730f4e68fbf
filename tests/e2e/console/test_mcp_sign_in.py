"""Signing in to an MCP server in the console, with an authorization server on another site."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import escape
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from playwright.async_api import Route, expect

from browser import Window
from console_client import HOSTILE, ConsoleClient
from console_forms import form_in
from doubles.oauth_server import Vault
from doubles.sign_in_server import SignInServer, browse
from mcp_support import serving_http
from strata.api.tool_execution.v1 import mcp_service_pb2 as pb
from strata.api.tool_execution.v1 import mcp_service_pb2_grpc as pb_grpc
from strata.shared.ids import new_id
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

SITE = "https://login.example"
"""Where the authorization server has its page: another site than that of the console."""


@dataclass
class Place:
    """An MCP server without a sign-in, and its authorization server."""

    system: System
    authority: SignInServer
    server: pb.McpServer

    @property
    def path(self) -> str:
        """Path of its page."""
        return f"/mcp/{self.server.id}"

    async def now(self) -> pb.McpServer:
        """Returns the current server."""
        request = pb.GetMcpServerRequest(mcp_server_id=self.server.id)
        servers = pb_grpc.McpServiceStub(self.system.channel)
        server: pb.McpServer = (await servers.GetMcpServer(request)).server
        return server


@pytest_asyncio.fixture(loop_scope="session")
async def place(system: System) -> AsyncIterator[Place]:
    authority = SignInServer()
    vault = Vault(authority)
    servers = pb_grpc.McpServiceStub(system.channel)
    async with serving_http(authority.app()) as issuer, serving_http(vault.app()) as root:
        authority.url = issuer
        vault.advertised.append(issuer)
        request = pb.AddMcpServerRequest(
            server=pb.McpServer(
                name=f"vault-{new_id('x')[-8:]}",
                transport=pb.MCP_TRANSPORT_STREAMABLE_HTTP,
                url=f"{root}/mcp",
                oauth=True,
                oauth_client=pb.McpOAuthClient(scope="gold:read"),
            )
        )
        server = (await servers.AddMcpServer(request)).server
        yield Place(system, authority, server)
        await servers.RemoveMcpServer(pb.RemoveMcpServerRequest(mcp_server_id=server.id))


def link_in(page: str) -> str:
    """Returns the link to the authorization server in a page."""
    before, _, after = page.partition("/authorize?")
    address = before.rpartition('href="')[2] + "/authorize?" + after.partition('"')[0]
    return address.replace("&amp;", "&")


async def test_sign_in_is_started_completed_and_deleted(place: Place, ann: ConsoleClient) -> None:
    assert "Sign in</button>" in (await ann.get(place.path)).text
    begun = await ann.post(f"{place.path}/sign-in")
    assert begun.status_code == 200, begun.text
    assert place.authority.url in begun.text
    assert "gold:read" in begun.text
    [asked] = place.authority.registered
    back_at = f"{ann.origin}/console{place.path}/sign-in/return"
    assert asked["redirect_uris"] == [back_at]

    answer = await browse(link_in(begun.text))
    async with ConsoleClient(ann.origin) as stranger:
        landed = await stranger.http.get(back_at, params={**answer, "other": "x"})
    assert landed.status_code == 200
    target = f"/console{place.path}/sign-in/finish?{urlencode(answer)}"
    assert f'content="0; url={escape(target)}"' in landed.text
    finish = await ann.http.get(target)
    form = form_in(finish.text, f"{place.path}/sign-in/finish")
    done = await ann.post(f"{place.path}/sign-in/finish", form)
    assert done.status_code == 303, done.text
    signed = await place.now()
    assert (signed.healthy, signed.sign_in.issuer) == (True, place.authority.url)
    page = (await ann.get(place.path)).text
    assert "Sign in again" in page
    assert not any(secret in page for secret in place.authority.secrets)

    # The answer can be used once, and the state of the session is deleted with it.
    again = await ann.post(f"{place.path}/sign-in/finish", form)
    assert (again.status_code, "MCP_SIGN_IN_FAILED" in again.text) == (400, True)
    await ann.post(f"{place.path}/sign-out")
    assert not (await place.now()).HasField("sign_in")


async def test_sign_in_of_another_session_is_not_finished(place: Place, ann: ConsoleClient) -> None:
    begun = await ann.post(f"{place.path}/sign-in")
    answer = await browse(link_in(begun.text))
    finish = f"{place.path}/sign-in/finish"
    async with ConsoleClient(ann.origin) as other:
        await other.sign_in(place.system.key)
        # The cookie of the first session is not valid for the second one.
        for name, value in ann.http.cookies.items():
            if name.endswith("_mcp_sign_in"):
                other.http.cookies.set(name, value)
        assert (await other.get(finish, params=answer)).status_code == 400
        refused = await other.post(finish, answer)
    assert (refused.status_code, "not begun in this browser" in refused.text) == (400, True)
    for wrong in ({}, answer | {"state": "another"}):
        assert (await ann.get(finish, params=wrong)).status_code == 400
        assert (await ann.post(finish, wrong)).status_code == 400
    assert not (await place.now()).HasField("sign_in")


async def test_refusal_of_the_authorization_server_is_shown(
    place: Place, ann: ConsoleClient
) -> None:
    begun = await ann.post(f"{place.path}/sign-in")
    state = link_in(begun.text).partition("state=")[2].partition("&")[0]
    answer = {"state": state, "error": HOSTILE}
    page = (await ann.get(f"{place.path}/sign-in/finish", params=answer)).text
    assert "The authorization server refused" in page
    assert "<script>alert" not in page
    assert "<form method" not in page.partition("<main")[2]


async def test_an_authorization_address_that_is_not_http_is_refused(
    place: Place, ann: ConsoleClient
) -> None:
    place.authority.metadata["authorization_endpoint"] = "javascript:alert(1)//"
    begun = await ann.post(f"{place.path}/sign-in")
    assert begun.status_code == 400
    assert "javascript:" not in begun.text


async def test_sign_in_without_a_usable_redirect_address_is_refused(
    place: Place, ann: ConsoleClient
) -> None:
    host = {"host": "console.example", "origin": "http://console.example"}
    refused = await ann.post(f"{place.path}/sign-in", headers=host)
    assert refused.status_code == 400
    assert "over https or at http://127.0.0.1" in refused.text


@pytest.mark.child_process
async def test_sign_in_completes_when_the_browser_returns_from_another_site(
    place: Place, window: Window
) -> None:
    place.authority.metadata["authorization_endpoint"] = f"{SITE}/authorize"

    async def agree(route: Route) -> None:
        asked = route.request.url.removeprefix(SITE)
        answer = await browse(place.authority.url + asked)
        back = f"{place.authority.registered[-1]['redirect_uris'][0]}?{urlencode(answer)}"
        body = f"<title>Log in</title><a href='{escape(back)}'>Agree</a>"
        await route.fulfill(body=body, content_type="text/html")

    page = window.page
    await page.context.route(f"{SITE}/**", agree)
    await page.goto(f"/console{place.path}")
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await expect(page.get_by_text(place.authority.url)).to_be_visible()
    assert await window.accessibility_faults() == []
    await page.get_by_role("link", name="Go to the sign-in page").click()
    # The session's cookie is not sent with the step from the other site.
    await page.get_by_role("link", name="Agree").click()
    await expect(page.get_by_role("button", name="Sign in again")).to_be_visible()
    await expect(page.get_by_text("healthy")).to_be_visible()
    assert (await place.now()).sign_in.issuer == place.authority.url
