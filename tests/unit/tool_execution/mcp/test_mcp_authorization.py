"""Finding the authorization server of an MCP server that is reached with TLS."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from strata.tool_execution.domain.mcp import OAuthClient
from strata.tool_execution.mcp.authorization import (
    AuthorizationError,
    AuthorizationServer,
    discover,
)

SERVER = "https://server.example/mcp"
ISSUER = "https://login.example"


def answering(issuer: str = ISSUER, **metadata: Any) -> httpx2.AsyncClient:
    """Returns a client that answers for a server and its authorization server."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if str(request.url) == SERVER:
            return httpx2.Response(401)
        if "oauth-protected-resource" in request.url.path:
            return httpx2.Response(
                200, json={"resource": SERVER, "authorization_servers": [issuer]}
            )
        known = {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "code_challenge_methods_supported": ["S256"],
        }
        return httpx2.Response(200, json={**known, **metadata})

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))


async def discover_server(client: httpx2.AsyncClient) -> AuthorizationServer:
    async with client as http:
        return await discover(http, SERVER, OAuthClient())


async def test_requested_scope_and_resource_are_those_of_the_server() -> None:
    one = await discover_server(answering(scopes_supported=["read", "offline_access"]))
    assert (one.issuer.rstrip("/"), one.resource) == (ISSUER, SERVER)
    assert one.scope == "read offline_access"


@pytest.mark.parametrize(
    ("issuer", "metadata"),
    [
        ("http://login.example", {}),
        (ISSUER, {"authorization_endpoint": "http://login.example/authorize"}),
        (ISSUER, {"token_endpoint": "http://login.example/token"}),
        (ISSUER, {"registration_endpoint": "http://login.example/register"}),
    ],
)
async def test_https_server_requires_https_endpoints(issuer: str, metadata: dict[str, Any]) -> None:
    with pytest.raises(AuthorizationError, match="without TLS"):
        await discover_server(answering(issuer, **metadata))
