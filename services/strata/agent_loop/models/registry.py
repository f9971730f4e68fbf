"""The configured model endpoints, and the resolution of handles. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.agent_loop.domain.model.chat import (
    DEFAULT_CONTEXT_WINDOW,
    DEFAULT_TEMPERATURE,
    EndpointType,
    ModelSettings,
    Timeouts,
)
from strata.agent_loop.domain.model.errors import UnknownModelError
from strata.agent_loop.models.known_models import KnownModel
from strata.agent_loop.models.presets.table import known_model, quirks_of
from strata.shared.record_fields import replace


@dataclass(frozen=True, slots=True)
class EndpointKey:
    """A key for an endpoint. `owner` describes its owner for error messages."""

    value: str = field(repr=False)
    owner: str


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """A configured model endpoint.

    Attributes:
        name: First part of the handles of its models. No slash.
        type: The wire protocol.
        base_url: Root of the API; empty for the provider's own address.
        api_key: Empty for a server without keys.
        key_owner: Description of the key's owner; empty for the server's settings.
        models: Names that may be used; empty for all models of the endpoint.
        context_window: Context window of its models in tokens; None if not configured.
        temperature: Default of its models; None leaves it out.
        structured_tools: Whether its models need the structured tool mode.
        images: Whether its models are shown images.
        timeouts: Limits in seconds.
        preset: Name of the known service that it is; empty for none.
    """

    name: str
    type: EndpointType
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    models: tuple[str, ...] = ()
    context_window: int | None = None
    temperature: float | None = DEFAULT_TEMPERATURE
    structured_tools: bool = False
    images: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)
    key_owner: str = ""
    preset: str = ""

    @property
    def key_described(self) -> str:
        """Description of the key that its models are called with."""
        if self.key_owner:
            return self.key_owner
        if not self.api_key:
            return f'no key: none is stored or configured for "{self.name}"'
        return f'the key for "{self.name}" in the settings of the server'

    def documented_limits(self, model: str) -> KnownModel | None:
        """Returns the documented limits of one of its models; None if none are known."""
        return known_model(self.preset, model)

    def window_of(self, model: str) -> int | None:
        """Returns the context window of one of its models; None if it is unknown."""
        limits = self.documented_limits(model)
        return self.context_window or (limits.context_window if limits else None)

    def handle(self, model: str) -> str:
        """The handle of one of its models."""
        return f"{self.name}/{model}"


class ModelRegistry:
    """The configured endpoints.

    Args:
        endpoints: In order of preference.
        default: Handle to use if a request has none; by default the first listed model.

    Raises:
        ValueError: A name is empty, has a slash or occurs twice.
    """

    def __init__(self, endpoints: Sequence[ModelEndpoint], default: str = "") -> None:
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        if len(self._endpoints) != len(endpoints):
            raise ValueError("two model endpoints have the same name")
        for name in self._endpoints:
            if not name or "/" in name:
                raise ValueError(f"{name!r} is not a name for a model endpoint")
        self._default = default

    @property
    def endpoints(self) -> Sequence[ModelEndpoint]:
        """All endpoints, in order of preference."""
        return list(self._endpoints.values())

    @property
    def default_handle(self) -> str:
        """The handle to use if a request has none; empty if nothing is configured."""
        if self._default:
            return self._default
        handles = [e.handle(model) for e in self._endpoints.values() for model in e.models]
        return handles[0] if handles else ""

    def with_keys(self, keys: Mapping[str, EndpointKey]) -> ModelRegistry:
        """Returns the same endpoints with other keys, by name; unknown names are ignored."""
        if not keys:
            return self
        return ModelRegistry(
            [
                replace(endpoint, api_key=key.value, key_owner=key.owner)
                if (key := keys.get(endpoint.name)) is not None
                else endpoint
                for endpoint in self.endpoints
            ],
            self._default,
        )

    def endpoint_of(self, handle: str) -> ModelEndpoint | None:
        """Returns the endpoint of a handle; None if there is none."""
        return self._endpoints.get(handle.partition("/")[0])

    def known_handles(self) -> list[str]:
        """Every listed handle, and "endpoint/*" for endpoints that allow all their models."""
        return [
            handle
            for endpoint in self._endpoints.values()
            for handle in map(endpoint.handle, endpoint.models or ("*",))
        ]

    def resolve(self, handle: str = "", **overrides: Any) -> ModelSettings:
        """Returns the settings to call a model with.

        Args:
            handle: "endpoint/model"; the model's name may hold slashes. Empty for the default.
            overrides: Fields of `ModelSettings` that an agent sets for itself; None keeps the
                endpoint's value.

        Raises:
            UnknownModelError: No endpoint offers the model; the error lists the known handles.
        """
        requested = handle or self.default_handle
        if not requested:
            raise UnknownModelError("No chat model is configured.", self.known_handles())
        name, _, model = requested.partition("/")
        endpoint = self._endpoints.get(name)
        if endpoint is None or not model:
            raise UnknownModelError(f"There is no model {requested!r}.", self.known_handles())
        if endpoint.models and model not in endpoint.models:
            raise UnknownModelError(
                f"Endpoint {name!r} has no model {model!r}.", self.known_handles()
            )
        settings = ModelSettings(
            handle=requested,
            endpoint_type=endpoint.type,
            model=model,
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            key_owner=endpoint.key_described,
            context_window=endpoint.window_of(model) or DEFAULT_CONTEXT_WINDOW,
            temperature=endpoint.temperature,
            structured_tools=endpoint.structured_tools,
            images=endpoint.images,
            timeouts=endpoint.timeouts,
            quirks=quirks_of(endpoint.preset, model),
        )
        changes = {name: value for name, value in overrides.items() if value is not None}
        return replace(settings, **changes)
