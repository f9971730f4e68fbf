"""Anthropic's messages API at Google Cloud's Vertex AI. Pure.

Project and region are the end of the address:
`https://europe-west1-aiplatform.googleapis.com/v1/projects/PROJECT/locations/europe-west1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from strata.agent_loop.models.dialects import anthropic
from strata.agent_loop.models.dialects.key_forms import plain_or_service_account

_ADDRESS = re.compile(
    r"(?P<root>https?://[^/?#]+[^?#]*)/projects/(?P<project>[a-z0-9:.-]+)"
    r"/locations/(?P<region>[a-z0-9-]+)/?"
)
_ROOTS = {
    "global": "https://aiplatform.googleapis.com/v1",
    "us": "https://aiplatform.us.rep.googleapis.com/v1",
    "eu": "https://aiplatform.eu.rep.googleapis.com/v1",
}


@dataclass(frozen=True, slots=True)
class VertexAddress:
    """The address of Vertex, with project and region."""

    base_url: str
    project: str
    region: str


def address_of(project: str, region: str) -> str:
    """Returns the address of a project in a region; empty if one of them is empty."""
    if not project or not region:
        return ""
    root = _ROOTS.get(region, f"https://{region}-aiplatform.googleapis.com/v1")
    return f"{root}/projects/{project}/locations/{region}"


def read_address(base_url: str) -> VertexAddress:
    """Parses a base URL.

    Raises:
        ValueError: It does not contain a project and a region.
    """
    match = _ADDRESS.fullmatch(base_url)
    if match is None:
        raise ValueError(
            f"{base_url!r} is not an address of Vertex AI; set ANTHROPIC_VERTEX_PROJECT_ID and "
            "CLOUD_ML_REGION, or a base_url such as "
            "https://REGION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/REGION"
        )
    return VertexAddress(match["root"], match["project"], match["region"])


def _check(base_url: str) -> None:
    read_address(base_url)


DIALECT = replace(
    anthropic.DIALECT,
    name="vertex",
    adapter="strata.agent_loop.models.anthropic_api.vertex",
    check_address=_check,
    read_key=plain_or_service_account,
)
