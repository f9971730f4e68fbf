"""Preset for Claude at Amazon Bedrock, with a key or with the credentials of the machine."""

from __future__ import annotations

from collections.abc import Mapping

from strata.agent_loop.models.dialects.bedrock import address_of
from strata.agent_loop.models.presets.base import AddressOption, Preset


def _address(base_url: str, options: Mapping[str, str]) -> str:
    return base_url or address_of(options["region"])


PRESET = Preset(
    name="bedrock",
    title="Amazon Bedrock",
    variables="BEDROCK",
    dialect="bedrock",
    keyless=True,
    key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
    address_variables=("ANTHROPIC_BEDROCK_BASE_URL",),
    address_options=(
        AddressOption(
            "region",
            ("AWS_REGION", "AWS_DEFAULT_REGION"),
            'Region of the endpoint "bedrock", where no address is set.',
        ),
    ),
    address=_address,
    environment=("AWS_",),
)
