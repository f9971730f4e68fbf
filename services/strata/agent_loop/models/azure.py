"""Models behind OpenAI's chat completions API at a resource of Azure.

A deployment takes the place of the model's name. Azure has no list of deployments for those who
have a key alone, so none is shown.
"""

from __future__ import annotations

from typing import cast

import httpx2
from openai import AsyncAzureOpenAI, AsyncOpenAI, Omit, OpenAIError

from strata.agent_loop.models.dialects.azure import read_address
from strata.agent_loop.models.openai import NO_KEY, OWN_HEADERS, OpenAiConnection
from strata.agent_loop.models.openai_errors import to_model_error


def open_client(base_url: str, api_key: str = "") -> AsyncOpenAI:
    """Opens a client with its connection pool.

    Args:
        base_url: The resource, see `dialects.azure`.
        api_key: Its key; calls may bring their own.
    """
    address = read_address(base_url)
    # The SDK takes them from OPENAI_ORG_ID and OPENAI_PROJECT_ID, which Azure does not know.
    headers = cast("dict[str, str]", dict.fromkeys(OWN_HEADERS, Omit()))
    if not address.api_version:
        return _V1Client(
            api_key=api_key or NO_KEY,
            base_url=address.v1_url,
            max_retries=0,
            default_headers=headers,
        )
    return AsyncAzureOpenAI(
        api_key=api_key or NO_KEY,
        azure_endpoint=address.endpoint,
        api_version=address.api_version,
        max_retries=0,
        default_headers=headers,
    )


class _V1Client(AsyncOpenAI):
    """A client for `/openai/v1`, which takes keys in the header of Azure."""

    def _auth_headers(self, security: object) -> dict[str, str]:
        return {"api-key": self.api_key}

    def _validate_headers(self, headers: object, custom_headers: object) -> None:
        """Takes all headers: the key is in one that the SDK does not look for."""


class AzureConnection(OpenAiConnection):
    """The connections to one resource. See `Connection`."""

    def _open(self, base_url: str) -> AsyncOpenAI:
        return open_client(base_url)

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        """Asks the resource, which shows that key and address are right; returns no name.

        What the resource lists are models that could be deployed, not its deployments.
        """
        try:
            await self._with_key(api_key).models.list()
        except (OpenAIError, httpx2.HTTPError) as error:
            raise to_model_error(error) from error
        return []

    async def has_model(self, api_key: str, name: str) -> bool:
        """Says yes, since nobody but a request can tell whether there is a deployment."""
        return True


def connect(base_url: str) -> AzureConnection:
    """See `Adapter.connect`."""
    return AzureConnection(base_url)
