"""The configured chat models as the loop's protocol."""

from __future__ import annotations

import time
from collections.abc import Sequence

from strata.agent_loop.domain.agents import ModelConfig
from strata.agent_loop.loop.ports import BoundModel
from strata.agent_loop.models.domain import DEFAULT_CONTEXT_WINDOW
from strata.agent_loop.models.errors import ModelError, ModelErrorKind, UnknownModelError
from strata.agent_loop.models.factory import EndpointModels, ModelFactory
from strata.agent_loop.models.registry import ModelRegistry
from strata.shared.errors import FieldViolation, InvalidArgumentError

HOW_TO_CONFIGURE = (
    "No chat model is configured. Set OPENAI_API_KEY or ANTHROPIC_API_KEY, or set"
    " STRATA_AGENT_LOOP_OPENAI_BASE_URL to the address of a local server such as Ollama"
    " (http://127.0.0.1:11434/v1), and start Strata again. Messages are stored meanwhile."
)
_LISTING_SECONDS = 60.0


class ModelProvider:
    """Implements `loop.ports.Models`.

    Where no default is configured, the first model that an endpoint lists is the default; the
    list is asked for at most once a minute.
    """

    def __init__(self, registry: ModelRegistry, factory: ModelFactory) -> None:
        self._registry = registry
        self._factory = factory
        self._listed_default = ""
        self._listed_at = float("-inf")

    async def bind(self, config: ModelConfig) -> BoundModel:
        """Chooses the model of an agent and opens what it needs.

        Raises:
            ModelError: NOT_CONFIGURED; the message says what to do.
        """
        handle = config.handle or await self.default_handle()
        if not handle:
            raise ModelError(ModelErrorKind.NOT_CONFIGURED, HOW_TO_CONFIGURE)
        settings = self._registry.resolve(
            handle,
            context_window=config.context_window or self._window_of(handle),
            max_tokens=config.max_output_tokens,
            temperature=config.temperature,
            parallel_tool_calls=config.parallel_tool_calls,
            reasoning_effort=config.reasoning_effort,
            max_reasoning_tokens=config.max_reasoning_tokens,
            structured_tools=config.structured_tools,
        )
        await self._factory.preload([settings.endpoint_type])
        return BoundModel(self._factory.model(settings), settings)

    async def preload(self) -> None:
        """Imports the SDKs of the configured endpoints, so that the first turn need not wait."""
        await self._factory.preload(endpoint.type for endpoint in self._registry.endpoints)

    def check(self, handle: str) -> None:
        """Refuses a handle that no configured endpoint can have.

        Without any endpoint every handle passes: the model may be configured later.

        Raises:
            InvalidArgumentError: INVALID_FIELD; it names what is known.
        """
        if not handle or not self._registry.endpoints:
            return
        try:
            self._registry.resolve(handle)
        except UnknownModelError as error:
            raise InvalidArgumentError(
                error.message, violations=[FieldViolation("model.handle", error.message)]
            ) from error

    async def default_handle(self) -> str:
        """Returns the handle that is used where an agent names none; empty if there is none."""
        configured = self._registry.default_handle
        if configured or not self._registry.endpoints:
            return configured
        if time.monotonic() - self._listed_at > _LISTING_SECONDS:
            await self.list_models()
        return self._listed_default

    async def list_models(self) -> Sequence[EndpointModels]:
        """Asks every endpoint what it has; one that does not answer is in the list all the same."""
        listed = await self._factory.list_models(self._registry.endpoints)
        handles = [model.handle for answer in listed for model in answer.models]
        self._listed_default = handles[0] if handles else ""
        self._listed_at = time.monotonic()
        return listed

    @property
    def registry(self) -> ModelRegistry:
        """The configured endpoints."""
        return self._registry

    def _window_of(self, handle: str) -> int:
        """The model's window, as far as known, and at most the default of an agent."""
        return min(self._registry.resolve(handle).context_window, DEFAULT_CONTEXT_WINDOW)
