"""Claude at Amazon Bedrock: requests have AWS signatures, replies are AWS event streams.

A key is a Bedrock API key, or `ACCESS_KEY_ID:SECRET_ACCESS_KEY` with an optional
`:SESSION_TOKEN`. Without a key, AWS's default credential chain of the machine is used.
"""

from __future__ import annotations

import re

from anthropic import AsyncAnthropicBedrock, DefaultAsyncHttpxClient

from strata.agent_loop.models.anthropic_api.clouds import CloudConnection, missing_package
from strata.agent_loop.models.dialects.bedrock import read_address
from strata.agent_loop.models.response_limits import bounded_client

try:
    # The SDK would import them with the first request, which would block the event loop.
    import boto3  # noqa: F401
    import botocore.auth
    import botocore.eventstream
    import botocore.parsers  # noqa: F401
    from botocore.exceptions import BotoCoreError
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

_ACCESS_KEY = re.compile(r"(A[KS]IA[A-Z0-9]{12,124}):([^:\s]+)(?::([^:\s]+))?")
_NO_KEY = "none"


class BedrockConnection(CloudConnection):
    """The connections to one region. See `EndpointConnection`."""

    def __init__(self, base_url: str) -> None:
        super().__init__()
        self._address = read_address(base_url)
        self._client: AsyncAnthropicBedrock | None = None
        if _INSTALLED:
            self.errors = (RuntimeError, BotoCoreError)

    def client(self, api_key: str) -> AsyncAnthropicBedrock:
        """See `CloudConnection.client`."""
        if not _INSTALLED:
            raise missing_package("Amazon Bedrock", "boto3", "bedrock")
        if self._client is None:
            # With any kind of key the SDK does not read AWS_BEARER_TOKEN_BEDROCK.
            self._client = AsyncAnthropicBedrock(
                api_key=_NO_KEY,
                aws_region=self._address.region,
                base_url=self._address.base_url,
                max_retries=0,
                http_client=bounded_client(DefaultAsyncHttpxClient),
            )
        client = self._client.copy()
        match = _ACCESS_KEY.fullmatch(api_key)
        client.api_key = None if match or not api_key else api_key
        if match:
            client.aws_access_key, client.aws_secret_key = match[1], match[2]
            client.aws_session_token = match[3]
        return client

    def secrets(self, api_key: str) -> dict[str, str]:
        """See `CloudConnection.secrets`."""
        match = _ACCESS_KEY.fullmatch(api_key)
        secret_values = {"API key": api_key}
        if match:
            secret_values = {"secret access key": match[2], "session token": match[3] or ""}
        return {name: value for name, value in secret_values.items() if value}

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()


def connect(base_url: str) -> BedrockConnection:
    """See `Adapter.connect`."""
    return BedrockConnection(base_url)
