"""OpenAI's chat completions at an Azure resource. Pure.

The address has the resource as its host, and the API version as its query, for example
`https://RESOURCE.openai.azure.com?api-version=2024-10-21`. An address that ends in
`/openai/v1` has no version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlsplit

from strata.agent_loop.models.dialects import openai

DEFAULT_API_VERSION = "2024-10-21"
"""The newest stable version of Azure's API, apart from `/openai/v1`."""

_VERSION_FIELD = "api-version"
_VERSIONLESS = "/openai/v1"


@dataclass(frozen=True, slots=True)
class AzureAddress:
    """An Azure resource.

    Attributes:
        endpoint: Root of the resource, without `/openai`.
        api_version: The version of the API; empty if the address has none.
    """

    endpoint: str
    api_version: str

    @property
    def v1_url(self) -> str:
        """Root of the API without versions."""
        return f"{self.endpoint}{_VERSIONLESS}"


def with_api_version(base_url: str, api_version: str) -> str:
    """Returns an address with an API version, unless it has one or needs none."""
    if not base_url or not api_version:
        return base_url
    parts = urlsplit(base_url)
    if _VERSION_FIELD in parse_qs(parts.query) or _is_versionless(parts.path):
        return base_url
    field = f"{_VERSION_FIELD}={api_version}"
    return parts._replace(query=f"{parts.query}&{field}" if parts.query else field).geturl()


def read_address(base_url: str) -> AzureAddress:
    """Parses a base URL; URLs from Azure's portal with a deployment path are accepted too.

    Raises:
        ValueError: It is not the address of a server.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"{base_url!r} is not an address of Azure OpenAI; expected a base_url such as"
            " https://RESOURCE.openai.azure.com?api-version=2024-10-21"
        )
    # A proxy may add a path before Azure's.
    before = parts.path.partition("/openai")[0].rstrip("/")
    root = f"{parts.scheme}://{parts.netloc}{before}"
    if _is_versionless(parts.path):
        return AzureAddress(root, "")
    return AzureAddress(root, parse_qs(parts.query).get(_VERSION_FIELD, [DEFAULT_API_VERSION])[0])


def _check(base_url: str) -> None:
    read_address(base_url)


def _is_versionless(path: str) -> bool:
    return f"{_VERSIONLESS}/" in f"{path}/"


DIALECT = replace(
    openai.DIALECT,
    name="azure",
    adapter="strata.agent_loop.models.openai_api.azure",
    check_address=_check,
)
