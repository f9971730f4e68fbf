"""Settings of the agent loop, prefix ``STRATA_AGENT_LOOP_``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, field_validator

from strata.agent_loop.domain.model.chat import (
    DEFAULT_ENDPOINT_TYPE,
    EndpointType,
    Timeouts,
)
from strata.agent_loop.models.dialects.table import dialect_of
from strata.agent_loop.models.metered_model import SLOW_CALL_S
from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.fields import settings_of_presets
from strata.agent_loop.models.presets.table import PRESETS, preset_of
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.shared.secrets import MasterKeySettings
from strata.shared.settings import MIB, RunServerLimits, ServiceSettings, settings_config
from strata.shared.web.addresses import read_networks

if TYPE_CHECKING:

    class _PresetSettings(ServiceSettings): ...
else:
    _PresetSettings = settings_of_presets()


class EndpointSettings(BaseModel):
    """A model endpoint; an element of ``STRATA_AGENT_LOOP_MODEL_ENDPOINTS``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="First part of the handles of its models.")
    preset: str = Field(
        default="",
        description=(
            "Known service that it is, by name: its address, wire protocol and quirks are taken "
            "from there, unless set here."
        ),
    )
    type: EndpointType = Field(
        default="", description='The wire protocol; by default that of the preset, or "openai".'
    )
    base_url: str = Field(default="", description="Root of the API; empty for the provider's own.")
    api_key: str = Field(default="", repr=False, description="Empty for a server without keys.")
    models: tuple[str, ...] = Field(
        default=(), description="Models that may be used; empty leaves that to the endpoint."
    )
    context_window: int | None = Field(
        default=None,
        gt=0,
        description=(
            "Tokens of the context window of its models, where the server does not report it; "
            "empty if unknown, which counts as 32000."
        ),
    )
    temperature: float | None = Field(default=0.7, description="Default of its models.")
    structured_tools: bool = Field(
        default=False, description="Offer tools as constrained JSON, for small local models."
    )
    images: bool = Field(
        default=True,
        description="Show images to its models; otherwise each is replaced by a text.",
    )
    first_event_timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds until the first piece of a reply."
    )
    total_timeout_s: float = Field(default=600.0, gt=0, description="Seconds for a whole reply.")

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        return preset_of(name).name if name else ""

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        return dialect_of(name).name if name else ""

    def endpoint(self) -> ModelEndpoint:
        """Returns the endpoint.

        Raises:
            ValueError: The address does not fit the wire protocol; the message has the reason.
        """
        preset = PRESETS.get(self.preset)
        timeouts = Timeouts(first_event=self.first_event_timeout_s, total=self.total_timeout_s)
        kind = self.type or (preset.dialect if preset else DEFAULT_ENDPOINT_TYPE)
        base_url = self.base_url or (preset.base_url if preset else "")
        try:
            dialect_of(kind).check_address(base_url)
        except ValueError as error:
            raise ValueError(f"model endpoint {self.name!r}: {error}") from error
        return ModelEndpoint(
            name=self.name,
            type=kind,
            base_url=base_url,
            preset=self.preset,
            api_key=self.api_key,
            models=self.models,
            context_window=self.context_window,
            temperature=self.temperature,
            structured_tools=self.structured_tools,
            images=self.images,
            timeouts=timeouts,
        )


class AgentLoopSettings(MasterKeySettings, _PresetSettings):
    """Settings of the agent loop."""

    model_config = settings_config("agent_loop")

    port: int = Field(default=7601, ge=0, le=65535, description="Port; 0 lets the system choose.")
    limits: RunServerLimits = Field(default_factory=RunServerLimits, description="Server limits.")
    journal_days: int = Field(
        default=2, gt=0, description="Days for which the journal of a run is kept."
    )
    approval_timeout_s: int = Field(
        default=24 * 3600,
        gt=0,
        description="Seconds until an unanswered approval request gets the default decision.",
    )
    default_model: str = Field(
        default="", description='Handle of the model for agents without one: "provider/model".'
    )
    model_endpoints: tuple[EndpointSettings, ...] = Field(
        default=(), description="Endpoints as a JSON list, best first."
    )
    image_cache_bytes: int = Field(
        default=64 * MIB,
        ge=0,
        description="Memory for recently shown images; others are read from recall again.",
    )
    fetch_images: bool = Field(
        default=True,
        description="Fetch images that clients name by URL; otherwise they are replaced by a text.",
    )
    slow_model_call_s: float = Field(
        default=SLOW_CALL_S,
        gt=0,
        description="Seconds from which on a call of a chat model is logged as slow.",
    )
    image_fetch_timeout_s: float = Field(
        default=15.0, gt=0, description="Seconds to fetch an image that a client names by URL."
    )
    image_private_networks: tuple[str, ...] = Field(
        default=(),
        description="Private networks that such images may be fetched from as well, as a JSON list"
        ' of CIDR blocks: ["10.1.0.0/16"]. By default only public addresses are reached.',
    )
    image_ports: tuple[int, ...] = Field(
        default=(443,), description="Ports that such images may be fetched from, as a JSON list."
    )

    prompts_path: Path | None = Field(
        default=None,
        description="Folder of further system prompts, one UTF-8 file `<key>.txt` each, that agents"
        " of all projects can be created with by key. It is read at each request for a prompt, "
        "so a new file needs no restart.",
    )

    @field_validator("image_private_networks")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        read_networks(networks)
        return networks

    def registry(self) -> ModelRegistry:
        """Returns the endpoints: the listed ones, then the known services with settings.

        Raises:
            ValueError: A name is wrong or occurs twice.
        """
        endpoints = [configured.endpoint() for configured in self.model_endpoints]
        names = {endpoint.name for endpoint in endpoints}
        usual = map(self._endpoint_of, PRESETS.values())
        endpoints += [
            endpoint for endpoint in usual if endpoint is not None and endpoint.name not in names
        ]
        return ModelRegistry(endpoints, self._default(endpoints))

    def _endpoint_of(self, preset: Preset) -> ModelEndpoint | None:
        key: str = getattr(self, preset.key_field)
        base_url: str = getattr(self, preset.base_url_field)
        options: dict[str, str] = {
            option.name: getattr(self, preset.option_field(option))
            for option in preset.address_options
        }
        by_option = any(o.configures and options[o.name] for o in preset.address_options)
        if not (by_option or preset.is_configured(key, base_url)):
            return None
        address = preset.address(base_url or preset.base_url, options)
        dialect_of(preset.dialect).check_address(address)
        return ModelEndpoint(preset.name, preset.dialect, address, key, preset=preset.name)

    def _default(self, endpoints: list[ModelEndpoint]) -> str:
        if self.default_model or not endpoints:
            return self.default_model
        first = endpoints[0]
        preset = PRESETS.get(first.preset or first.type)
        if preset is None or first.models or first.base_url != preset.base_url:
            return ""
        return first.handle(preset.default_model) if preset.default_model else ""
