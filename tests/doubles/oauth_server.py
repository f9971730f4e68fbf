"""An authorization server, and an MCP server that requires its tokens."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@dataclass
class Authority:
    """An authorization server with one client.

    Attributes:
        issued: All tokens, in order.
        valid: Tokens that are accepted.
        asked: The forms of all requests for tokens.
    """

    client_id: str = "strata@machine"
    secret: str = "s3cret of the client"
    url: str = ""
    issued: list[str] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    asked: list[dict[str, str]] = field(default_factory=list)
    lifetime: int = 3600

    def app(self) -> Starlette:
        """What is to be served."""
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def _metadata(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "response_types_supported": ["code"],
            }
        )

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.asked.append(form)
        packed = request.headers.get("authorization", "").removeprefix("Basic ")
        name, _, secret = base64.b64decode(packed).decode().partition(":")
        if (unquote(name), unquote(secret)) != (self.client_id, self.secret):
            # Some authorization servers return what they were sent.
            credentials = f"{unquote(name)} {unquote(secret)}"
            return JSONResponse({"error": "invalid_client", "error_description": credentials}, 401)
        token = f"token-{len(self.issued)}-of-{'x' * 20}"
        self.issued.append(token)
        self.valid.add(token)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime}
        return JSONResponse(answer)


@dataclass
class Vault:
    """An MCP server that requires access tokens.

    Attributes:
        authority: The server whose tokens are accepted.
        advertised: Authorization servers that it names.
        metadata_url: The announced address of its metadata; empty for the real one.
        opened: Calls of its tools.
    """

    authority: Authority
    advertised: list[str] = field(default_factory=list)
    metadata_url: str = ""
    opened: int = 0

    def app(self) -> Any:
        """What is to be served."""
        server = MCPServer("vault")

        @server.tool()
        def look() -> str:
            """Returns a text that contains the access token."""
            self.opened += 1
            return f"gold, and the token {self.authority.issued[-1]}"

        inner = server.streamable_http_app()

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
                return
            request = Request(scope, receive)
            root = f"http://{request.headers['host']}"
            place = f"{root}/.well-known/oauth-protected-resource/mcp"
            if request.url.path.startswith("/.well-known/oauth-protected-resource"):
                answer: Response = JSONResponse(
                    {"resource": f"{root}/mcp", "authorization_servers": self.advertised}
                )
                await answer(scope, receive, send)
                return
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if token in self.authority.valid:
                await inner(scope, receive, send)
                return
            where = self.metadata_url or place
            challenge = {"WWW-Authenticate": f'Bearer resource_metadata="{where}"'}
            await Response(status_code=401, headers=challenge)(scope, receive, send)

        return guarded
