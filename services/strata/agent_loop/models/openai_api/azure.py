"""Chat models with OpenAI's chat completions API at an Azure resource.

The name of a deployment is used as model name. Azure does not list deployments to callers with
only a key, so none are listed.
"""

from __future__ import annotations

from typing import cast

import httpx2
from openai import AsyncAzureOpenAI, AsyncOpenAI, DefaultAsyncHttpxClient, Omit, OpenAIError

from strata.agent_loop.models.dialects.azure import read_address
from strata.agent_loop.models.openai_api.chat_completions import (
    NO_KEY,
    OWN_HEADERS,
    OpenAiConnection,
)
from strata.agent_loop.models.openai_api.errors import to_model_error
from strata.agent_loop.models.response_limits import bounded_client


def open_client(base_url: str, api_key: str = "") -> AsyncOpenAI:
    """Opens a client with its connection pool.

    Args:
        base_url: Address of the resource, see `dialects.azure`.
        api_key: Its default key; calls may use another one.
    """
    address = read_address(base_url)
    # The SDK reads them from OPENAI_ORG_ID and OPENAI_PROJECT_ID, which Azure does not use.
    headers = cast("dict[str, str]", dict.fromkeys(OWN_HEADERS, Omit()))
    if not address.api_version:
        return _V1Client(
            api_key=api_key or NO_KEY,
            base_url=address.v1_url,
            max_retries=0,
            http_client=bounded_client(DefaultAsyncHttpxClient),
            default_headers=headers,
        )
    return AsyncAzureOpenAI(
        api_key=api_key or NO_KEY,
        azure_endpoint=address.endpoint,
        api_version=address.api_version,
        max_retries=0,
        http_client=bounded_client(DefaultAsyncHttpxClient),
        default_headers=headers,
    )


class _V1Client(AsyncOpenAI):
    """A client for `/openai/v1`, which sends keys in Azure's header."""

    def _auth_headers(self, security: object) -> dict[str, str]:
        return {"api-key": self.api_key}

    def _validate_headers(self, headers: object, custom_headers: object) -> None:
        """Accepts all headers: the SDK does not expect the key in Azure's header."""


class AzureConnection(OpenAiConnection):
    """The connections to one resource. See `EndpointConnection`."""

    def _open(self, base_url: str) -> AsyncOpenAI:
        return open_client(base_url)

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        """Sends a request to check key and address; returns no models.

        The resource lists models that could be deployed, not its deployments.
        """
        try:
            await self._with_key(api_key).models.list()
        except (OpenAIError, httpx2.HTTPError) as error:
            raise to_model_error(error) from error
        return []

    async def has_model(self, api_key: str, name: str) -> bool:
        """Returns True, since only a request shows whether the deployment exists."""
        return True


def connect(base_url: str) -> AzureConnection:
    """See `Adapter.connect`."""
    return AzureConnection(base_url)
