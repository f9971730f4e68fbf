"""Preset for Claude at Google Cloud's Vertex AI, with a key or the machine's credentials."""

from __future__ import annotations

from collections.abc import Mapping

from strata.agent_loop.models.dialects.vertex import address_of
from strata.agent_loop.models.presets.base import AddressOption, Preset


def _address(base_url: str, options: Mapping[str, str]) -> str:
    return base_url or address_of(options["project"], options["region"])


PRESET = Preset(
    name="vertex",
    title="Vertex AI",
    variables="VERTEX",
    dialect="vertex",
    keyless=True,
    address_variables=("ANTHROPIC_VERTEX_BASE_URL",),
    address_options=(
        AddressOption(
            "project",
            ("ANTHROPIC_VERTEX_PROJECT_ID",),
            'Project of Google Cloud; it configures the endpoint "vertex".',
            configures=True,
        ),
        AddressOption(
            "region",
            ("CLOUD_ML_REGION",),
            'Region of the endpoint "vertex", where no address is set.',
        ),
    ),
    address=_address,
    environment=("GOOGLE_APPLICATION_CREDENTIALS",),
)
