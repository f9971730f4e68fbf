"""An authorization server with the authorization code flow; the simulated person always agrees."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from doubles.oauth_server import Authority


@dataclass
class SignInServer(Authority):
    """Registers clients, gives codes to browsers, and tokens for codes and refresh tokens.

    Attributes:
        names_itself: Whether its redirects contain the issuer.
        metadata: Overrides of its metadata.
        clients: Secrets by id of the clients that it knows; empty for those without.
        registered: Requests of the clients that it has registered.
        codes: The authorization requests, by code.
        refreshing: Valid refresh tokens; each can be used once.
        down: Token requests are answered with server errors.
    """

    names_itself: bool = True
    registers: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, str] = field(default_factory=dict)
    registered: list[dict[str, Any]] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    refreshing: set[str] = field(default_factory=set)
    down: bool = False

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    @property
    def secrets(self) -> set[str]:
        """The secret values that must not be shown."""
        return {*self.issued, *self.refreshing, *self.codes, *filter(None, self.clients.values())}

    async def _metadata(self, _request: Request) -> Response:
        known: dict[str, Any] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": self.names_itself,
        }
        if self.registers:
            known["registration_endpoint"] = f"{self.url}/register"
        return JSONResponse({**known, **self.metadata})

    async def _register(self, request: Request) -> Response:
        asked = await request.json()
        self.registered.append(asked)
        name = f"client-{len(self.registered)}"
        self.clients[name] = ""
        return JSONResponse({**asked, "client_id": name}, 201)

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if asked["client_id"] not in self.clients or asked["code_challenge_method"] != "S256":
            return Response("refused", 400)
        code = f"code-{len(self.codes)}-{'c' * 20}"
        self.codes[code] = asked
        answer = {"code": code, "state": asked["state"]}
        if self.names_itself:
            answer["iss"] = self.url
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}")

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.asked.append(form)
        if self.down:
            return Response("on fire", 503)
        packed = request.headers.get("authorization", "").removeprefix("Basic ")
        secret = unquote(base64.b64decode(packed).decode().partition(":")[2])
        if self.clients.get(form["client_id"]) != secret:
            return JSONResponse({"error": "invalid_client"}, 401)
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refreshing:
                return JSONResponse({"error": "invalid_grant", "was": form["refresh_token"]}, 400)
            self.refreshing.discard(form["refresh_token"])
        elif not self._proved(form):
            return JSONResponse({"error": "invalid_grant", "was": form["code"]}, 400)
        token, refresh = (f"{kind}-{len(self.issued)}-{'t' * 20}" for kind in ("access", "refresh"))
        self.issued.append(token)
        self.valid.add(token)
        self.refreshing.add(refresh)
        answer = {"access_token": token, "token_type": "bearer", "expires_in": self.lifetime}
        return JSONResponse({**answer, "refresh_token": refresh})

    def _proved(self, form: dict[str, str]) -> bool:
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        return (
            asked is not None
            and base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
            and form["redirect_uri"] == asked["redirect_uri"]
            and form["resource"] == asked["resource"]
        )


async def browse(url: str) -> dict[str, str]:
    """Opens an address like a browser; returns the parameters of the redirect."""
    async with httpx2.AsyncClient(trust_env=False) as browser:
        answer = await browser.get(url)
    assert answer.status_code == 307, answer.text
    return dict(parse_qsl(urlsplit(answer.headers["location"]).query))
