"""OAuth requests with which a person signs in to an MCP server.

Discovery, registration and PKCE follow RFC 9728, 8414, 7591, 7636, 8707 and 9207, and use functions
of the `mcp` SDK. The SDK's own flow waits for the person within one request to the server and
cannot be split into two calls. All requests use the guarded transport of the caller. This module
imports the SDK, so it is loaded only when needed.
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

_SUCCESS = frozenset((200, 201))
_GRANTS = ["authorization_code", "refresh_token"]
_METHODS = ("none", "client_secret_basic", "client_secret_post")
_PING = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
_MOST_CHARS = 16_000


class AuthorizationError(Exception):
    """A step of the sign-in failed. The message contains nothing that was sent or received.

    Attributes:
        revoked: Whether the authorization server no longer accepts the grant.
    """

    def __init__(self, message: str, *, revoked: bool = False) -> None:
        super().__init__(message)
        self.revoked = revoked


@dataclass(frozen=True, slots=True)
class AuthorizationServer:
    """An authorization server, and the resource and scopes to request.

    Raises on creation if the server is not secure enough.

    Attributes:
        metadata: Metadata of the expected issuer.
        resource: The resource that tokens are for.
        scope: The scopes to request.
    """

    metadata: OAuthMetadata
    resource: str
    scope: str

    @property
    def issuer(self) -> str:
        """The issuer."""
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
                "The authorization server does not support PKCE with S256, without which anyone who"
                " sees a code could use it."
            )


async def discover(
    http: httpx2.AsyncClient, server_url: str, client: OAuthClient
) -> AuthorizationServer:
    """Finds the authorization server of an MCP server.

    Args:
        http: Client with the guarded transport.
        server_url: URL of the MCP server.
        client: The configured issuer and scopes, if any.

    Raises:
        AuthorizationError: There is none, or it is not the configured one.
    """
    challenge = await _send(
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
    described = await _resource_metadata(http, server_url, challenge)
    issuer = client.issuer
    if described is not None:
        issuer = _choose_issuer(
            [str(authorization_server) for authorization_server in described.authorization_servers],
            client.issuer,
        )
    if server_url.lower().startswith("https:") and issuer.lower().startswith("http:"):
        raise AuthorizationError("The MCP server names an authorization server without TLS.")
    metadata = await _metadata(http, issuer, server_url)
    scope = client.scope or get_client_metadata_scopes(
        extract_scope_from_www_auth(challenge), described, metadata, _GRANTS
    )
    resource = resource_url_from_server_url(server_url)
    if described is not None and described.resource:
        resource = str(described.resource)
    return AuthorizationServer(metadata, resource, scope or "")


async def _resource_metadata(
    http: httpx2.AsyncClient, server_url: str, challenge: httpx2.Response
) -> ProtectedResourceMetadata | None:
    """Returns the protected resource metadata of the MCP server; None for servers without any."""
    metadata_url = extract_resource_metadata_from_www_auth(challenge)
    for url in build_protected_resource_metadata_discovery_urls(metadata_url, server_url):
        response = await _send(http, create_oauth_metadata_request(url), "the MCP server")
        if response.status_code >= 500 or response.status_code == 429:
            status = status_text(response.status_code)
            raise AuthorizationError(
                f"The MCP server answered {status} to the request for its authorization server."
            )
        resource = await handle_protected_resource_response(response)
        if resource is None:
            continue
        ours = resource_url_from_server_url(server_url)
        if not check_resource_allowed(
            requested_resource=ours, configured_resource=str(resource.resource)
        ):
            raise AuthorizationError("The metadata of the MCP server is for another server.")
        return resource
    return None


def _choose_issuer(offered: list[str], configured: str) -> str:
    if not configured:
        return offered[0]
    if any(issuers_match(issuer, configured) for issuer in offered):
        return configured
    raise AuthorizationError(
        "The MCP server does not name the configured issuer as its authorization server."
    )


async def _metadata(http: httpx2.AsyncClient, issuer: str, server_url: str) -> OAuthMetadata:
    parts = urlsplit(server_url)
    expected = issuer or f"{parts.scheme}://{parts.netloc}"
    for url in build_oauth_authorization_server_metadata_discovery_urls(issuer or None, server_url):
        response = await _send(http, create_oauth_metadata_request(url), "the authorization server")
        goes_on, metadata = await handle_auth_metadata_response(response)
        if metadata is not None:
            if not issuers_match(str(metadata.issuer), expected):
                validate_metadata_issuer(metadata, expected)
            return metadata
        if not goes_on:
            break
    raise AuthorizationError("No authorization server was found for the MCP server.")


async def register(
    http: httpx2.AsyncClient, server: AuthorizationServer, redirect_uri: str
) -> RegisteredClient:
    """Registers Strata with an authorization server (RFC 7591).

    Raises:
        AuthorizationError: The server does not register clients, or its response cannot be used.
    """
    if not server.metadata.registration_endpoint:
        raise AuthorizationError(
            "The authorization server does not support client registration. Register a client"
            " manually, and set oauth_client.client_id and oauth_client.issuer."
        )
    local = redirect_uri.startswith("http:")
    client_metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "Strata",
            "redirect_uris": [redirect_uri],
            "grant_types": _GRANTS,
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "native" if local else "web",
            "scope": server.scope or None,
        }
    )
    request = create_client_registration_request(server.metadata, client_metadata, server.issuer)
    response = await _send(http, request, "the authorization server")
    if response.status_code not in _SUCCESS:
        status = status_text(response.status_code)
        raise AuthorizationError(
            f"The authorization server refused to register a client: {status}."
        )
    registered = await handle_registration_response(response)
    method = registered.token_endpoint_auth_method or (
        "client_secret_basic" if registered.client_secret else "none"
    )
    if method not in _METHODS or (method != "none" and not registered.client_secret):
        raise AuthorizationError(
            "The authorization server requires a client authentication that is not supported."
        )
    return RegisteredClient(registered.client_id, registered.client_secret or "", method)


def new_pkce_pair() -> tuple[str, str]:
    """Returns a new PKCE code verifier and its S256 challenge."""
    pkce = PKCEParameters.generate()
    return pkce.code_verifier, pkce.code_challenge


def authorization_url(
    server: AuthorizationServer, pending: PendingSignIn, state: str, challenge: str
) -> str:
    """Returns the URL that the person opens in a browser."""
    endpoint = str(server.metadata.authorization_endpoint)
    parameters = {
        "response_type": "code",
        "client_id": pending.client.id,
        "redirect_uri": pending.redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": pending.resource,
    }
    if pending.scope:
        parameters["scope"] = pending.scope
    # Some servers ask for consent to offline access only with this parameter.
    if "offline_access" in pending.scope.split():
        parameters["prompt"] = "consent"
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(parameters)}"


async def exchange_code(
    http: httpx2.AsyncClient, pending: PendingSignIn, code: str, now: float
) -> Tokens:
    """Exchanges an authorization code for tokens.

    Raises:
        AuthorizationError: The authorization server gave no tokens.
    """
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": pending.redirect_uri,
        "code_verifier": pending.verifier,
        "resource": pending.resource,
    }
    answer = await _token_response(http, pending.token_endpoint, pending.client, form)
    return Tokens(
        access=answer["access_token"],
        server_url=pending.server_url,
        issuer=pending.issuer,
        token_endpoint=pending.token_endpoint,
        client=pending.client,
        resource=pending.resource,
        scope=answer.get("scope") or pending.scope,
        refresh=answer.get("refresh_token") or "",
        expire_time=_expire_time(answer, now),
    )


async def refresh_tokens(http: httpx2.AsyncClient, tokens: Tokens, now: float) -> Mapping[str, Any]:
    """Refreshes tokens; returns the members of `Tokens` that change.

    Raises:
        AuthorizationError: The authorization server gave no tokens; `revoked` if a person has to
            sign in again.
    """
    form = {
        "grant_type": "refresh_token",
        "refresh_token": tokens.refresh,
        "resource": tokens.resource,
    }
    answer = await _token_response(http, tokens.token_endpoint, tokens.client, form)
    return {
        "access": answer["access_token"],
        "refresh": answer.get("refresh_token") or tokens.refresh,
        "expire_time": _expire_time(answer, now),
    }


async def _token_response(
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
    response = await _send(http, request, "the authorization server")
    if response.status_code not in _SUCCESS:
        reason = reason_of(response)
        details = f" ({reason})" if reason else ""
        message = f"The authorization server answered {status_text(response.status_code)}{details}."
        raise AuthorizationError(message, revoked=reason == "invalid_grant")
    try:
        answer = parse_json(response.content)
    except JsonTextError:
        answer = None
    if not isinstance(answer, dict) or not _is_token(answer):
        raise AuthorizationError("The authorization server gave no usable token.")
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


def _expire_time(answer: Mapping[str, Any], now: float) -> float | None:
    seconds = answer.get("expires_in")
    return None if seconds is None else now + float(seconds)


async def _send(
    http: httpx2.AsyncClient, request: httpx2.Request, whom: str, *, head: bool = False
) -> httpx2.Response:
    try:
        response = await http.send(request, stream=head)
        if head:
            # The body may be an endless event stream.
            await response.aclose()
    except httpx2.HTTPError as error:
        raise AuthorizationError(f"{whom[0].upper()}{whom[1:]} cannot be asked: {error}") from None
    return response


@asynccontextmanager
async def translate_errors() -> AsyncIterator[None]:
    """Translates errors of the SDK, whose messages may repeat responses.

    Raises:
        AuthorizationError: Instead of an error of the SDK.
    """
    try:
        yield
    except OAuthFlowError as error:
        issuer = "issuer" in str(error)
        raise AuthorizationError(
            "The issuer in the authorization server's metadata is not the expected one."
            if issuer
            else "The authorization server's answer cannot be used."
        ) from None
    except ValueError:
        raise AuthorizationError("A response of the authorization server is invalid.") from None
