"""Claude at Google Cloud's Vertex AI.

A key is an access token, or the JSON of a service account; its tokens are fetched and refreshed.
Without a key, Google's default credentials of the machine are used.
"""

from __future__ import annotations

import json
from typing import Any

from anthropic import AsyncAnthropicVertex, DefaultAsyncHttpxClient

from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind
from strata.agent_loop.models.anthropic_api.clouds import CloudConnection, missing_package
from strata.agent_loop.models.dialects.vertex import read_address
from strata.agent_loop.models.response_limits import bounded_client

try:
    import google.auth.transport.requests  # noqa: F401  the SDK fetches tokens by it
    from google.auth.exceptions import GoogleAuthError
    from google.oauth2 import service_account
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105  an address
"""The URL for tokens of service accounts. The URL in a stored key is ignored."""

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_MAX_ACCOUNTS = 1000


class VertexConnection(CloudConnection):
    """The connections to one project in one region. See `EndpointConnection`."""

    def __init__(self, base_url: str) -> None:
        super().__init__()
        self._address = read_address(base_url)
        self._client: AsyncAnthropicVertex | None = None
        self._accounts: dict[str, Any] = {}
        if _INSTALLED:
            self.errors = (RuntimeError, GoogleAuthError)

    def client(self, api_key: str) -> AsyncAnthropicVertex:
        """See `CloudConnection.client`."""
        if not _INSTALLED:
            raise missing_package("Vertex AI", "google-auth", "vertex")
        if self._client is None:
            self._client = AsyncAnthropicVertex(
                project_id=self._address.project,
                region=self._address.region,
                base_url=self._address.base_url,
                max_retries=0,
                http_client=bounded_client(DefaultAsyncHttpxClient),
            )
        if not api_key:
            return self._client
        if api_key.lstrip().startswith("{"):
            return self._client.copy(credentials=self._account(api_key))
        return self._client.copy(access_token=api_key)

    def _account(self, key: str) -> Any:
        if key not in self._accounts:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                self._accounts.clear()
            self._accounts[key] = _credentials(key)
        return self._accounts[key]

    def secrets(self, api_key: str) -> dict[str, str]:
        """See `CloudConnection.secrets`."""
        if api_key.lstrip().startswith("{"):
            try:
                private = json.loads(api_key)["private_key"]
            except (ValueError, TypeError, KeyError):
                private = ""
            return {"private key": private} if isinstance(private, str) and private else {}
        return {"access token": api_key} if api_key else {}

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()


def _credentials(key: str) -> Any:
    try:
        account = json.loads(key)
        if account["type"] != "service_account":
            raise ValueError("its type is not service_account")  # noqa: TRY301
        # Otherwise a stored key could send requests into the server's own network.
        account["token_uri"] = TOKEN_URI
        read: Any = service_account.Credentials.from_service_account_info
        return read(account, scopes=[_SCOPE])
    except (ValueError, TypeError, KeyError, GoogleAuthError) as error:
        # The parser's error could show a part of the key.
        raise ModelError(
            ModelErrorKind.AUTHENTICATION,
            "The key for Vertex AI is neither an access token nor the JSON of a service account "
            "with its private key.",
        ) from error


def connect(base_url: str) -> VertexConnection:
    """See `Adapter.connect`."""
    return VertexConnection(base_url)
