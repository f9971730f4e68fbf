"""Tokens of an authorization server, for a client that acts for itself.

The SDK finds the authorization server and asks it for tokens, within the requests to the MCP
server: all of it goes through that server's guarded transport. Imported with the SDK.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableMapping

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from strata.shared.json_text import JsonTextError, parse_json
from strata.tool_execution.domain.mcp import ClientCredentials
from strata.tool_execution.mcp.streams import status_text

_ANSWERED = frozenset((200, 201))
# Of RFC 6749, 5.2, and RFC 8707. What else is in such an answer may repeat the credentials.
_TOLD = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client"),
        *("unsupported_grant_type", "invalid_scope", "invalid_target"),
    }
)


class _Kept:
    """Tokens of one session; its next one, here or in another process, gets its own."""

    def __init__(self, tokens: MutableMapping[str, str]) -> None:
        self._tokens = tokens

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens.clear()
        self._tokens["access token"] = tokens.access_token
        if tokens.refresh_token:
            self._tokens["refresh token"] = tokens.refresh_token

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Not called: the client is known to its authorization server beforehand."""


class ClientCredentialsAuth(ClientCredentialsOAuthProvider):
    """Signs requests to one MCP server in, and again when a token has expired.

    A request is sent on only with a token. If there is none to be had, it fails like one that
    could not be sent: the server has refused it, and nothing was run.

    Args:
        server_url: Where the MCP server is.
        credentials: What the client is known by.
        secret: The client's secret.
        tokens: Where the current tokens are put, by what they are, so that they can be taken
            out of what comes back.

    Attributes:
        failed: True if there was no token to be had.
    """

    def __init__(
        self,
        server_url: str,
        credentials: ClientCredentials,
        secret: str,
        tokens: MutableMapping[str, str],
    ) -> None:
        super().__init__(
            server_url,
            _Kept(tokens),
            client_id=credentials.client_id,
            client_secret=secret,
            issuer=credentials.issuer,
        )
        self._scope = credentials.scope
        self.failed = False

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yields what is to be sent for a request.

        Raises:
            ConnectError: There is no token to be had; of httpx2.
        """
        self.failed = False
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except OAuthFlowError as error:
            said = str(error)
        except ValueError:
            said = "an answer of the authorization server is none"
        finally:
            await flow.aclose()
        self.failed = True
        raise httpx2.ConnectError(f"signing in with OAuth failed: {said}", request=request)

    async def _perform_authorization(self) -> httpx2.Request:
        # The SDK would ask for whatever scopes the server names.
        if self._scope:
            self.context.client_metadata.scope = self._scope
        endpoint = self._get_token_endpoint()
        issuer = self._issuer or ""
        if issuer.lower().startswith("https:") and not endpoint.lower().startswith("https:"):
            raise OAuthFlowError("the authorization server wants the secret without TLS")
        return await super()._perform_authorization()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        if response.status_code not in _ANSWERED:
            await response.aread()
            said = f"the authorization server answered {status_text(response.status_code)}"
            reason = reason_of(response)
            raise OAuthFlowError(f"{said} ({reason})" if reason else said)
        await super()._handle_token_response(response)


def reason_of(response: httpx2.Response) -> str:
    """Why a token was refused, if it is one of the reasons that the standard has."""
    try:
        answer = parse_json(response.content)
    except JsonTextError:
        return ""
    code = answer.get("error") if isinstance(answer, dict) else None
    return code if isinstance(code, str) and code in _TOLD else ""
