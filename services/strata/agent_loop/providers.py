"""The configured chat models as the loop's protocol."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from strata.agent_loop.domain.agents import ModelConfig
from strata.agent_loop.domain.keys import SealedKey
from strata.agent_loop.keys import Keyring
from strata.agent_loop.loop.ports import BoundModel
from strata.agent_loop.models.domain import DEFAULT_CONTEXT_WINDOW
from strata.agent_loop.models.errors import ModelError, ModelErrorKind, UnknownModelError
from strata.agent_loop.models.factory import EndpointModels, ModelFactory
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.shared.errors import FieldViolation, InvalidArgumentError

HOW_TO_CONFIGURE = (
    "No chat model is configured. Set OPENAI_API_KEY or ANTHROPIC_API_KEY, or set"
    " STRATA_AGENT_LOOP_OPENAI_BASE_URL to the address of a local server such as Ollama"
    " (http://127.0.0.1:11434/v1), and start Strata again. Messages are stored meanwhile."
)
_LISTING_SECONDS = 60.0
_MAX_DEFAULTS = 100


@dataclass(frozen=True, slots=True)
class _Default:
    """The first model that was listed, and when."""

    handle: str
    asked_at: float


class ModelProvider:
    """Implements `loop.ports.Models`.

    Where no default is configured, the first model that an endpoint lists is the default; the
    list is asked for at most once a minute.

    Args:
        registry: The configured endpoints.
        factory: Opens models.
        keyring: Opens the keys that projects and agents bring along.
    """

    def __init__(
        self, registry: ModelRegistry, factory: ModelFactory, keyring: Keyring | None = None
    ) -> None:
        self._registry = registry
        self._factory = factory
        self._keyring = keyring or Keyring()
        # What an endpoint lists may depend on the key that it is asked with.
        self._defaults: dict[tuple[ModelEndpoint, ...], _Default] = {}

    async def bind(self, config: ModelConfig, keys: Sequence[SealedKey] = ()) -> BoundModel:
        """Chooses the model of an agent and opens what it needs.

        Args:
            config: What the agent says of its model.
            keys: The stored keys of the agent and of its project; they go before the settings'.

        Raises:
            ModelError: NOT_CONFIGURED, or AUTHENTICATION if a stored key cannot be opened; the
                message says what to do.
        """
        handle = config.handle or await self.default_handle(keys)
        if not handle:
            raise ModelError(ModelErrorKind.NOT_CONFIGURED, HOW_TO_CONFIGURE)
        key = self._keyring.open_for(handle.partition("/")[0], keys)
        settings = self._registry.with_keys(key).resolve(
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

    def check(self, handle: str, field: str = "model.handle") -> None:
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
                error.message, violations=[FieldViolation(field, error.message)]
            ) from error

    async def default_handle(self, keys: Sequence[SealedKey] = ()) -> str:
        """Returns the handle that is used where an agent names none; empty if there is none.

        Args:
            keys: The stored keys to ask the endpoints with.
        """
        configured = self._registry.default_handle
        if configured or not self._registry.endpoints:
            return configured
        known = self._defaults.get(self._endpoints(keys))
        if known is None or time.monotonic() - known.asked_at > _LISTING_SECONDS:
            await self.list_models(keys)
            known = self._defaults[self._endpoints(keys)]
        return known.handle

    async def list_models(self, keys: Sequence[SealedKey] = ()) -> Sequence[EndpointModels]:
        """Asks every endpoint what it has; one that does not answer is in the list all the same.

        Args:
            keys: The stored keys to ask them with.
        """
        endpoints = self._endpoints(keys)
        listed = await self._factory.list_models(endpoints)
        handles = [model.handle for answer in listed for model in answer.models]
        if len(self._defaults) >= _MAX_DEFAULTS:
            self._defaults.clear()
        self._defaults[endpoints] = _Default(handles[0] if handles else "", time.monotonic())
        return listed

    def _endpoints(self, keys: Sequence[SealedKey]) -> tuple[ModelEndpoint, ...]:
        return tuple(self._registry.with_keys(self._keyring.open_all(keys)).endpoints)

    @property
    def registry(self) -> ModelRegistry:
        """The configured endpoints."""
        return self._registry

    def _window_of(self, handle: str) -> int:
        """The model's window, as far as known, and at most the default of an agent."""
        return min(self._registry.resolve(handle).context_window, DEFAULT_CONTEXT_WINDOW)
