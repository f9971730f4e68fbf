"""Preset for Azure OpenAI, where each customer has a resource with self-named deployments."""

from __future__ import annotations

from collections.abc import Mapping

from strata.agent_loop.domain.model.quirks import Quirks, ReplyForm
from strata.agent_loop.models.dialects.azure import DEFAULT_API_VERSION, with_api_version
from strata.agent_loop.models.presets.base import AddressOption, Preset


def _address(base_url: str, options: Mapping[str, str]) -> str:
    return with_api_version(base_url, options["api_version"])


PRESET = Preset(
    name="azure",
    title="Azure OpenAI",
    variables="AZURE_OPENAI",
    dialect="azure",
    addressed=True,
    address_variables=("AZURE_OPENAI_ENDPOINT",),
    address_options=(
        AddressOption(
            "api_version",
            ("AZURE_OPENAI_API_VERSION", "OPENAI_API_VERSION"),
            'Version of the API of the endpoint "azure", by default'
            f" {DEFAULT_API_VERSION}; an address that ends in /openai/v1 needs none.",
        ),
    ),
    address=_address,
    # All models that are still served accept it; the newer ones accept nothing else. The name of a
    # deployment does not identify its model.
    quirks=Quirks(limit_name="max_completion_tokens", json_replies=ReplyForm.STRICT),
)
