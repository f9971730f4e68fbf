"""The description of a known service that serves models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strata.agent_loop.domain.model.chat import DEFAULT_ENDPOINT_TYPE, EndpointType
from strata.agent_loop.domain.model.quirks import NO_QUIRKS, Quirks
from strata.agent_loop.models.known_models import KnownModel


@dataclass(frozen=True, slots=True)
class AddressOption:
    """A setting that completes the address of a service, such as its region.

    Attributes:
        name: End of the setting's name, `api_version` for `azure_api_version`.
        variables: Variables of the service's own tools, which are read too.
        description: Description for operators.
        configures: Whether setting it is enough to configure the service.
    """

    name: str
    variables: tuple[str, ...]
    description: str
    configures: bool = False


def _as_it_is(base_url: str, options: Mapping[str, str]) -> str:
    return base_url


@dataclass(frozen=True, slots=True)
class Preset:
    """A known service.

    Attributes:
        name: The name in settings, and the first part of the handles of its models.
        title: Its product name.
        variables: Prefix of its variables: `GROQ` for `GROQ_API_KEY` and
            `GROQ_BASE_URL`.
        base_url: Root of the API; empty for the SDK's default.
        dialect: The wire protocol.
        local: Whether it is self-hosted software. Such a service is configured by
            its address; a hosted one by its key.
        keyless: Whether a hosted service can also be configured by an address without a key,
            because other servers replace it or because keys come from elsewhere.
        addressed: Whether every customer of a hosted service has its own address. Such a
            service is configured by its address.
        key_variables: Further variables with its key.
        address_variables: Further variables with its address.
        address_options: Settings that complete its address.
        address: Returns the address that follows from a base URL, which may be empty, and from
            the values of `address_options` by name.
        environment: Prefixes of further variables that the SDK of the service reads. They hold
            credentials of the machine, so they are passed on only if the service is configured.
        default_model: The model for agents without a model; empty for the first listed one.
        quirks: How it deviates from its dialect.
        quirks_of_models: Quirks of models, by prefix of their names.
        known_models: Limits of its models that its API does not state, by name without version.
    """

    name: str
    title: str
    variables: str
    base_url: str = ""
    dialect: EndpointType = DEFAULT_ENDPOINT_TYPE
    local: bool = False
    keyless: bool = False
    addressed: bool = False
    key_variables: tuple[str, ...] = ()
    address_variables: tuple[str, ...] = ()
    address_options: tuple[AddressOption, ...] = ()
    address: Callable[[str, Mapping[str, str]], str] = _as_it_is
    environment: tuple[str, ...] = ()
    default_model: str = ""
    quirks: Quirks = NO_QUIRKS
    quirks_of_models: Mapping[str, Quirks] = field(default_factory=dict)
    known_models: Mapping[str, KnownModel] = field(default_factory=dict)

    @property
    def key_field(self) -> str:
        """The name of the setting with its key."""
        return f"{self.name}_api_key"

    @property
    def base_url_field(self) -> str:
        """The name of the setting with its address."""
        return f"{self.name}_base_url"

    def option_field(self, option: AddressOption) -> str:
        """The name of a setting that completes its address."""
        return f"{self.name}_{option.name}"

    def variables_in(self, environment: Mapping[str, str]) -> list[str]:
        """Returns the prefixes of the variables for the service.

        Args:
            environment: All variables.
        """
        options = [name for option in self.address_options for name in option.variables]
        setting = f"STRATA_AGENT_LOOP_{self.name.upper()}_"
        own = [f"{self.variables}_", *self.key_variables, *self.address_variables]
        configuring = [name for o in self.address_options if o.configures for name in o.variables]
        names = (setting, *own, *configuring)
        is_set = any(value and name.startswith(names) for name, value in environment.items())
        is_set |= self.name in environment.get("STRATA_AGENT_LOOP_MODEL_ENDPOINTS", "")
        return [*own, *options, *(self.environment if is_set else ())]

    def is_configured(self, api_key: str, base_url: str) -> bool:
        """Returns whether the settings configure the service.

        Args:
            api_key: Its key; empty for none.
            base_url: Its configured address; empty for none.
        """
        if self.local or self.addressed:
            return bool(base_url)
        return bool(api_key or (self.keyless and base_url))

    def quirks_of(self, model: str) -> Quirks:
        """Returns the quirks of one of its models."""
        for beginning, quirks in self.quirks_of_models.items():
            if model.startswith(beginning):
                return quirks
        return self.quirks
