"""What is asked of an authorization server, so that a person can sign in to an MCP server.

Finding it, registering with it and proof of possession follow RFC 9728, 8414, 7591, 7636, 8707
and 9207, with the `mcp` SDK's pieces; the SDK's own flow waits for the person within a request
to the server, and cannot be split over two calls. Everything goes out through the guarded
transport that is given. Imported with the SDK.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    create_client_registration_request,
    create_oauth_metadata_request,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    handle_registration_response,
    issuers_match,
    validate_metadata_issuer,
)
from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

from strata.shared.json_text import JsonTextError, parse_json
from strata.tool_execution.domain.mcp import OAuthClient
from strata.tool_execution.domain.mcp_sign_in import PendingSignIn, RegisteredClient, Tokens
from strata.tool_execution.mcp.oauth import reason_of
from strata.tool_execution.mcp.streams import status_text

_ANSWERED = frozenset((200, 201))
_GRANTS = ["authorization_code", "refresh_token"]
_METHODS = ("none", "client_secret_basic", "client_secret_post")
_PING = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
_MOST_CHARS = 16_000


class AuthorizationError(Exception):
    """It cannot be done; the words are ours, and repeat nothing that was sent.

    Attributes:
        revoked: The authorization server no longer takes what it gave before.
    """

    def __init__(self, words: str, *, revoked: bool = False) -> None:
        super().__init__(words)
        self.revoked = revoked


@dataclass(frozen=True, slots=True)
class Found:
    """An authorization server, and what is to be asked of it.

    Attributes:
        metadata: Of the issuer that is meant.
        resource: What tokens are for.
        scope: The scopes to ask for.
    """

    metadata: OAuthMetadata
    resource: str
    scope: str

    @property
    def issuer(self) -> str:
        """Who it is."""
        return str(self.metadata.issuer)

    def __post_init__(self) -> None:
        secure = self.issuer.lower().startswith("https:")
        for endpoint in (
            self.metadata.authorization_endpoint,
            self.metadata.token_endpoint,
            self.metadata.registration_endpoint,
        ):
            if secure and endpoint and not str(endpoint).lower().startswith("https:"):
                raise AuthorizationError("The authorization server has an address without TLS.")
        if "S256" not in (self.metadata.code_challenge_methods_supported or ()):
            raise AuthorizationError(
                "The authorization server does not say that it knows PKCE with S256, without which"
                " a code could be used by whoever sees it."
            )


async def find(http: httpx2.AsyncClient, server_url: str, wanted: OAuthClient) -> Found:
    """Finds the authorization server of an MCP server.

    Args:
        http: Sends requests, guarded.
        server_url: Where the MCP server is.
        wanted: What is known beforehand.

    Raises:
        AuthorizationError: There is none, or another one than is wanted.
    """
    challenge = await _sent(
        http,
        httpx2.Request(
            "POST",
            server_url,
            json=_PING,
            headers={"Accept": "application/json, text/event-stream"},
        ),
        "the MCP server",
        head=True,
    )
    described = await _described(http, server_url, challenge)
    issuer = wanted.issuer
    if described is not None:
        issuer = _chosen(
            [str(authorization_server) for authorization_server in described.authorization_servers],
            wanted.issuer,
        )
    if server_url.lower().startswith("https:") and issuer.lower().startswith("http:"):
        raise AuthorizationError("The MCP server names an authorization server without TLS.")
    metadata = await _metadata(http, issuer, server_url)
    asked = wanted.scope or get_client_metadata_scopes(
        extract_scope_from_www_auth(challenge), described, metadata, _GRANTS
    )
    resource = resource_url_from_server_url(server_url)
    if described is not None and described.resource:
        resource = str(described.resource)
    return Found(metadata, resource, asked or "")


async def _described(
    http: httpx2.AsyncClient, server_url: str, challenge: httpx2.Response
) -> ProtectedResourceMetadata | None:
    """What the server says about who gives tokens for it; None if it says nothing (an old one)."""
    named = extract_resource_metadata_from_www_auth(challenge)
    for url in build_protected_resource_metadata_discovery_urls(named, server_url):
        response = await _sent(http, create_oauth_metadata_request(url), "the MCP server")
        if response.status_code >= 500 or response.status_code == 429:
            said = status_text(response.status_code)
            raise AuthorizationError(f"The MCP server answered {said} to who gives tokens for it.")
        found = await handle_protected_resource_response(response)
        if found is None:
            continue
        ours = resource_url_from_server_url(server_url)
        if not check_resource_allowed(
            requested_resource=ours, configured_resource=str(found.resource)
        ):
            raise AuthorizationError("The MCP server says that its tokens are for another server.")
        return found
    return None


def _chosen(offered: list[str], wanted: str) -> str:
    if not wanted:
        return offered[0]
    if any(issuers_match(each, wanted) for each in offered):
        return wanted
    raise AuthorizationError(
        "The MCP server names another authorization server than the issuer of its configuration."
    )


async def _metadata(http: httpx2.AsyncClient, issuer: str, server_url: str) -> OAuthMetadata:
    parts = urlsplit(server_url)
    expected = issuer or f"{parts.scheme}://{parts.netloc}"
    for url in build_oauth_authorization_server_metadata_discovery_urls(issuer or None, server_url):
        response = await _sent(http, create_oauth_metadata_request(url), "the authorization server")
        goes_on, found = await handle_auth_metadata_response(response)
        if found is not None:
            if not issuers_match(str(found.issuer), expected):
                validate_metadata_issuer(found, expected)
            return found
        if not goes_on:
            break
    raise AuthorizationError("No authorization server is found for the MCP server.")


async def register(http: httpx2.AsyncClient, found: Found, redirect_uri: str) -> RegisteredClient:
    """Registers us with an authorization server (RFC 7591).

    Raises:
        AuthorizationError: It does not register clients, or gave nothing that can be used.
    """
    if not found.metadata.registration_endpoint:
        raise AuthorizationError(
            "The authorization server registers no clients by itself. Register one by hand, and"
            " give its id as oauth_client.client_id, with the issuer."
        )
    local = redirect_uri.startswith("http:")
    wanted = OAuthClientMetadata.model_validate(
        {
            "client_name": "Strata",
            "redirect_uris": [redirect_uri],
            "grant_types": _GRANTS,
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "native" if local else "web",
            "scope": found.scope or None,
        }
    )
    request = create_client_registration_request(found.metadata, wanted, found.issuer)
    response = await _sent(http, request, "the authorization server")
    if response.status_code not in _ANSWERED:
        said = status_text(response.status_code)
        raise AuthorizationError(f"The authorization server registers no client: {said}.")
    given = await handle_registration_response(response)
    method = given.token_endpoint_auth_method or (
        "client_secret_basic" if given.client_secret else "none"
    )
    if method not in _METHODS or (method != "none" and not given.client_secret):
        raise AuthorizationError("The authorization server wants proofs that we cannot give.")
    return RegisteredClient(given.client_id, given.client_secret or "", method)


def proof() -> tuple[str, str]:
    """Returns a new verifier and its challenge (PKCE, S256)."""
    made = PKCEParameters.generate()
    return made.code_verifier, made.code_challenge


def authorization_url(found: Found, begun: PendingSignIn, state: str, challenge: str) -> str:
    """Returns where the person has to go."""
    endpoint = str(found.metadata.authorization_endpoint)
    asked = {
        "response_type": "code",
        "client_id": begun.client.id,
        "redirect_uri": begun.redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": begun.resource,
    }
    if begun.scope:
        asked["scope"] = begun.scope
    # Some ask for consent to lasting access only when they are told to.
    if "offline_access" in begun.scope.split():
        asked["prompt"] = "consent"
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}"


async def exchange(http: httpx2.AsyncClient, begun: PendingSignIn, code: str, now: float) -> Tokens:
    """Gets tokens for a code.

    Raises:
        AuthorizationError: There are none.
    """
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": begun.redirect_uri,
        "code_verifier": begun.verifier,
        "resource": begun.resource,
    }
    answer = await _asked(http, begun.token_endpoint, begun.client, form)
    return Tokens(
        access=answer["access_token"],
        server_url=begun.server_url,
        issuer=begun.issuer,
        token_endpoint=begun.token_endpoint,
        client=begun.client,
        resource=begun.resource,
        scope=answer.get("scope") or begun.scope,
        refresh=answer.get("refresh_token") or "",
        expire_time=_end(answer, now),
    )


async def renew(http: httpx2.AsyncClient, tokens: Tokens, now: float) -> Mapping[str, Any]:
    """Gets the next tokens; returns what of `Tokens` is another one.

    Raises:
        AuthorizationError: There are none; `revoked` if a person has to sign in again.
    """
    form = {
        "grant_type": "refresh_token",
        "refresh_token": tokens.refresh,
        "resource": tokens.resource,
    }
    answer = await _asked(http, tokens.token_endpoint, tokens.client, form)
    return {
        "access": answer["access_token"],
        "refresh": answer.get("refresh_token") or tokens.refresh,
        "expire_time": _end(answer, now),
    }


async def _asked(
    http: httpx2.AsyncClient, endpoint: str, client: RegisteredClient, form: dict[str, str]
) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    form = {**form, "client_id": client.id}
    if client.method == "client_secret_basic":
        packed = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(packed.encode()).decode()}"
    elif client.method == "client_secret_post":
        form["client_secret"] = client.secret
    request = httpx2.Request("POST", endpoint, data=form, headers=headers)
    response = await _sent(http, request, "the authorization server")
    if response.status_code not in _ANSWERED:
        reason = reason_of(response)
        told = f" ({reason})" if reason else ""
        said = f"The authorization server answered {status_text(response.status_code)}{told}."
        raise AuthorizationError(said, revoked=reason == "invalid_grant")
    try:
        answer = parse_json(response.content)
    except JsonTextError:
        answer = None
    if not isinstance(answer, dict) or not _is_token(answer):
        raise AuthorizationError("The authorization server gave no token that can be used.")
    return answer


def _is_token(answer: Mapping[str, Any]) -> bool:
    kind, seconds = answer.get("token_type"), answer.get("expires_in")
    texts = [answer.get("access_token"), answer.get("refresh_token", ""), answer.get("scope", "")]
    return (
        bool(texts[0])
        and isinstance(texts[0], str)
        and texts[0].isascii()
        and texts[0].isprintable()
        and all(
            text is None or (isinstance(text, str) and len(text) <= _MOST_CHARS) for text in texts
        )
        and isinstance(kind, str)
        and kind.lower() == "bearer"
        and (seconds is None or (isinstance(seconds, int | float) and abs(seconds) < 10**10))
    )


def _end(answer: Mapping[str, Any], now: float) -> float | None:
    seconds = answer.get("expires_in")
    return None if seconds is None else now + float(seconds)


async def _sent(
    http: httpx2.AsyncClient, request: httpx2.Request, whom: str, *, head: bool = False
) -> httpx2.Response:
    try:
        response = await http.send(request, stream=head)
        if head:
            # It may be events without end.
            await response.aclose()
    except httpx2.HTTPError as error:
        raise AuthorizationError(f"{whom[0].upper()}{whom[1:]} cannot be asked: {error}") from None
    return response


@asynccontextmanager
async def in_our_words() -> AsyncIterator[None]:
    """Turns what the SDK's pieces raise into words that repeat nothing.

    Raises:
        AuthorizationError: In their place.
    """
    try:
        yield
    except OAuthFlowError as error:
        issuer = "issuer" in str(error)
        raise AuthorizationError(
            "The authorization server calls itself by another name than the issuer that is meant."
            if issuer
            else "The authorization server's answer cannot be used."
        ) from None
    except ValueError:
        raise AuthorizationError("An answer of the authorization server is none.") from None
