"""The settings of each known service: its key and its address."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field, create_model

from strata.agent_loop.models.presets.base import AddressOption, Preset
from strata.agent_loop.models.presets.table import PRESETS
from strata.shared.settings import ServiceSettings


def settings_of_presets() -> type[ServiceSettings]:
    """Returns the settings of a service with fields for the key and the address of each preset."""
    fields: dict[str, Any] = {}
    for preset in PRESETS.values():
        fields[preset.key_field] = (str, _key(preset))
        fields[preset.base_url_field] = (str, _base_url(preset))
        for option in preset.address_options:
            fields[preset.option_field(option)] = (str, _option(preset, option))
    return create_model("PresetSettings", __base__=ServiceSettings, **fields)


def _key(preset: Preset) -> Any:
    variables = (f"{preset.variables}_API_KEY", *preset.key_variables)
    return Field(
        default="",
        repr=False,
        validation_alias=_either(preset.key_field, *variables),
        description=f'Key of the endpoint "{preset.name}" ({preset.title}); {_read_too(variables)}',
    )


def _base_url(preset: Preset) -> Any:
    variables = (f"{preset.variables}_BASE_URL", *preset.address_variables)
    meaning = f'Root of the endpoint "{preset.name}"'
    if preset.addressed:
        meaning += f" ({preset.title}); setting it configures the endpoint"
    elif preset.local:
        meaning += f", usually {preset.base_url}; setting it configures the endpoint"
    elif preset.keyless:
        meaning += "; any compatible server"
    return Field(
        default="",
        validation_alias=_either(preset.base_url_field, *variables),
        description=f"{meaning}. {_read_too(variables)}",
    )


def _option(preset: Preset, option: AddressOption) -> Any:
    return Field(
        default="",
        validation_alias=_either(preset.option_field(option), *option.variables),
        description=f"{option.description} {_read_too(option.variables)}",
    )


def _read_too(variables: tuple[str, ...]) -> str:
    verb = "is" if len(variables) == 1 else "are"
    return f"{' and '.join(variables)} {verb} read too."


def _either(field: str, *variables: str) -> AliasChoices:
    """Returns the service's own variable, or the variables that the provider's tools use."""
    return AliasChoices(f"STRATA_AGENT_LOOP_{field.upper()}", *variables, field)
