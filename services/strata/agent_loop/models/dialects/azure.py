"""OpenAI's chat completions at a resource of Azure. Pure.

The address has all that a request needs: the resource as its host, and the version of the API as
its query, `https://RESOURCE.openai.azure.com?api-version=2024-10-21`. An address that ends in
`/openai/v1` has no version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlsplit

from strata.agent_loop.models.dialects import openai

DEFAULT_API_VERSION = "2024-10-21"
"""The newest version of the API that Azure calls stable, apart from `/openai/v1`."""

_VERSION_FIELD = "api-version"
_VERSIONLESS = "/openai/v1"


@dataclass(frozen=True, slots=True)
class AzureAddress:
    """A resource of Azure.

    Attributes:
        endpoint: Root of the resource, without `/openai`.
        api_version: The version of the API; empty where the address has none.
    """

    endpoint: str
    api_version: str

    @property
    def v1_url(self) -> str:
        """Root of the API that has no version."""
        return f"{self.endpoint}{_VERSIONLESS}"


def with_api_version(base_url: str, api_version: str) -> str:
    """Returns an address with a version of the API, unless it has one or needs none."""
    if not base_url or not api_version:
        return base_url
    parts = urlsplit(base_url)
    if _VERSION_FIELD in parse_qs(parts.query) or _is_versionless(parts.path):
        return base_url
    field = f"{_VERSION_FIELD}={api_version}"
    return parts._replace(query=f"{parts.query}&{field}" if parts.query else field).geturl()


def read_address(base_url: str) -> AzureAddress:
    """Reads a base URL; what Azure's portal shows, down to the deployment, is understood too.

    Raises:
        ValueError: It is no address of a server.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"{base_url!r} is no address of Azure OpenAI; expected a base_url such as"
            " https://RESOURCE.openai.azure.com?api-version=2024-10-21"
        )
    # A proxy may put a path before that of Azure.
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
    adapter="strata.agent_loop.models.azure",
    check_address=_check,
)
