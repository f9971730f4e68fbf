"""OAuth client credentials grant for requests to an MCP server.

The SDK discovers the authorization server and requests tokens as part of the requests to the MCP
server, so everything uses the guarded transport of that server. This module imports the SDK, so it
is loaded only when needed.
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

_SUCCESS = frozenset((200, 201))
# Error codes of RFC 6749, 5.2, and RFC 8707. Other parts of an error response may repeat the
# credentials, so they are not shown.
_ERROR_CODES = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client"),
        *("unsupported_grant_type", "invalid_scope", "invalid_target"),
    }
)


class _SessionTokens:
    """Token storage of one session; every session requests its own tokens."""

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
        """Not called: the client is registered in advance."""


class ClientCredentialsAuth(ClientCredentialsOAuthProvider):
    """Adds tokens to requests to one MCP server, and gets new ones when they expire.

    A request is sent only with a token. Without one it fails like a request that could not be sent,
    and nothing is run.

    Args:
        server_url: URL of the MCP server.
        credentials: The configured client credentials.
        secret: The client secret.
        tokens: Receives the current tokens by kind, so that they can be redacted in responses.

    Attributes:
        failed: Whether no token could be obtained.
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
            _SessionTokens(tokens),
            client_id=credentials.client_id,
            client_secret=secret,
            issuer=credentials.issuer,
        )
        self._scope = credentials.scope
        self.failed = False

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yields the requests to send for a request.

        Raises:
            httpx2.ConnectError: No token could be obtained.
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
            problem = str(error)
        except ValueError:
            problem = "a response of the authorization server is invalid"
        finally:
            await flow.aclose()
        self.failed = True
        raise httpx2.ConnectError(f"signing in with OAuth failed: {problem}", request=request)

    async def _perform_authorization(self) -> httpx2.Request:
        # Without this the SDK requests all scopes that the server advertises.
        if self._scope:
            self.context.client_metadata.scope = self._scope
        endpoint = self._get_token_endpoint()
        issuer = self._issuer or ""
        if issuer.lower().startswith("https:") and not endpoint.lower().startswith("https:"):
            raise OAuthFlowError("the token endpoint of the authorization server has no TLS")
        return await super()._perform_authorization()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        if response.status_code not in _SUCCESS:
            await response.aread()
            message = f"the authorization server answered {status_text(response.status_code)}"
            reason = reason_of(response)
            raise OAuthFlowError(f"{message} ({reason})" if reason else message)
        await super()._handle_token_response(response)


def reason_of(response: httpx2.Response) -> str:
    """Returns the standard error code with which a token was refused; empty for others."""
    try:
        answer = parse_json(response.content)
    except JsonTextError:
        return ""
    code = answer.get("error") if isinstance(answer, dict) else None
    return code if isinstance(code, str) and code in _ERROR_CODES else ""
