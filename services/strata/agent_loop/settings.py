"""Settings of the agent loop, prefix ``STRATA_AGENT_LOOP_``."""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr

from strata.agent_loop.models.domain import DEFAULT_CONTEXT_WINDOW, EndpointType, Timeouts
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.shared.secrets import Envelope, open_envelope
from strata.shared.settings import RoomSettings, room_config

# Used where a key is given and nothing else. Anything newer is one setting away.
_OPENAI_DEFAULT = "gpt-4.1-mini"
_ANTHROPIC_DEFAULT = "claude-sonnet-4-5"


class EndpointSettings(BaseModel):
    """A place to call models at; an element of ``STRATA_AGENT_LOOP_MODEL_ENDPOINTS``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="First part of the handles of its models.")
    type: EndpointType = Field(default=EndpointType.OPENAI, description="The wire protocol.")
    base_url: str = Field(default="", description="Root of the API; empty for the provider's own.")
    api_key: str = Field(default="", repr=False, description="Empty for a server without keys.")
    models: tuple[str, ...] = Field(
        default=(), description="Models that may be used; empty leaves that to the endpoint."
    )
    context_window: int = Field(
        default=DEFAULT_CONTEXT_WINDOW, gt=0, description="Tokens, where nothing else is known."
    )
    temperature: float | None = Field(default=0.7, description="Default of its models.")
    structured_tools: bool = Field(
        default=False, description="Offer tools as constrained JSON, for small local models."
    )
    first_event_timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds until the first piece of a reply."
    )
    total_timeout_s: float = Field(default=600.0, gt=0, description="Seconds for a whole reply.")

    def endpoint(self) -> ModelEndpoint:
        """Returns the endpoint."""
        timeouts = Timeouts(first_event=self.first_event_timeout_s, total=self.total_timeout_s)
        return ModelEndpoint(
            name=self.name,
            type=self.type,
            base_url=self.base_url,
            api_key=self.api_key,
            models=self.models,
            context_window=self.context_window,
            temperature=self.temperature,
            structured_tools=self.structured_tools,
            timeouts=timeouts,
        )


def _either(name: str) -> AliasChoices:
    """The room's own variable, or the one that the provider's tools use."""
    return AliasChoices(f"STRATA_AGENT_LOOP_{name}", name, name.lower())


class AgentLoopSettings(RoomSettings):
    """What the agent loop can be told from outside."""

    model_config = room_config("agent_loop")

    port: int = Field(default=7601, ge=0, le=65535, description="Port; 0 lets the system choose.")
    pool_size: int = Field(default=10, gt=0, description="Database connections at most.")
    request_days: int = Field(
        default=7, gt=0, description="Days for which a repeated request_id is recognised."
    )
    journal_days: int = Field(
        default=2, gt=0, description="Days for which the journal of a run is kept."
    )
    approval_timeout_s: int = Field(
        default=24 * 3600,
        gt=0,
        description="Seconds until the default decision about an unanswered request for approval.",
    )
    default_model: str = Field(
        default="", description='Handle of the model for agents that name none: "provider/model".'
    )
    model_endpoints: tuple[EndpointSettings, ...] = Field(
        default=(), description="Endpoints as a JSON list, best first."
    )
    openai_api_key: str = Field(
        default="",
        repr=False,
        validation_alias=_either("OPENAI_API_KEY"),
        description='Key of the endpoint "openai"; OPENAI_API_KEY is read too.',
    )
    openai_base_url: str = Field(
        default="",
        validation_alias=_either("OPENAI_BASE_URL"),
        description='Root of the endpoint "openai"; any compatible server.',
    )
    anthropic_api_key: str = Field(
        default="",
        repr=False,
        validation_alias=_either("ANTHROPIC_API_KEY"),
        description='Key of the endpoint "anthropic"; ANTHROPIC_API_KEY is read too.',
    )
    anthropic_base_url: str = Field(
        default="",
        validation_alias=_either("ANTHROPIC_BASE_URL"),
        description='Root of the endpoint "anthropic".',
    )

    master_keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="Keys that stored model keys are encrypted with, as a JSON list, each 32 bytes"
        " in Base64; the first one encrypts, all of them decrypt.",
    )
    master_keys_file: Path | None = Field(
        default=None, description="File to read those keys from instead, one per line."
    )

    def envelope(self) -> Envelope | None:
        """Returns what seals model keys; None if there is no master key.

        Raises:
            OSError: The file cannot be read.
            ValueError: A master key is none.
        """
        keys = [key.get_secret_value() for key in self.master_keys]
        return open_envelope(keys, self.master_keys_file)

    def registry(self) -> ModelRegistry:
        """Returns the endpoints: those listed, then OpenAI's and Anthropic's from their keys.

        Raises:
            ValueError: A name is wrong or occurs twice.
        """
        endpoints = [given.endpoint() for given in self.model_endpoints]
        names = {endpoint.name for endpoint in endpoints}
        usual = (self._openai(), self._anthropic())
        endpoints += [found for found in usual if found is not None and found.name not in names]
        return ModelRegistry(endpoints, self._default(endpoints))

    def _openai(self) -> ModelEndpoint | None:
        if not self.openai_api_key and not self.openai_base_url:
            return None
        return ModelEndpoint(
            "openai", EndpointType.OPENAI, self.openai_base_url, self.openai_api_key
        )

    def _anthropic(self) -> ModelEndpoint | None:
        if not self.anthropic_api_key:
            return None
        return ModelEndpoint(
            "anthropic", EndpointType.ANTHROPIC, self.anthropic_base_url, self.anthropic_api_key
        )

    def _default(self, endpoints: list[ModelEndpoint]) -> str:
        if self.default_model or not endpoints:
            return self.default_model
        first = endpoints[0]
        if first.models or first.base_url:
            return ""
        usual = {
            EndpointType.OPENAI: _OPENAI_DEFAULT,
            EndpointType.ANTHROPIC: _ANTHROPIC_DEFAULT,
        }
        return first.handle(usual[first.type])
