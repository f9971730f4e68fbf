"""Chooses the chat models of agents from the configured endpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from strata.agent_loop.domain.agent.agents import ModelConfig
from strata.agent_loop.domain.model.chat import DEFAULT_CONTEXT_WINDOW
from strata.agent_loop.domain.model.errors import (
    ModelError,
    ModelErrorKind,
    UnknownModelError,
    naming_key,
)
from strata.agent_loop.domain.model.keys import SealedKey
from strata.agent_loop.domain.model.usage_count import Count, uncounted
from strata.agent_loop.domain.ports import BoundModel
from strata.agent_loop.models.factory import EndpointModels, ModelFactory
from strata.agent_loop.models.keyring import Keyring
from strata.agent_loop.models.probes import ModelFinding, ask_model, ask_server, documented
from strata.agent_loop.models.registry import ModelEndpoint, ModelRegistry
from strata.protocol.errors import FieldViolation, InvalidArgumentError

HOW_TO_CONFIGURE = (
    "No chat model is configured. Set OPENAI_API_KEY, ANTHROPIC_API_KEY or the key of another known"
    " service, such as MISTRAL_API_KEY or GROQ_API_KEY, or set OLLAMA_BASE_URL to the address of"
    " Ollama (http://127.0.0.1:11434/v1) or STRATA_AGENT_LOOP_OPENAI_BASE_URL to that of any"
    " compatible server, and start Strata again. Messages are stored meanwhile."
)
_LISTING_SECONDS = 60.0
_MAX_DEFAULTS = 100
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Default:
    """The first listed model, and when it was listed."""

    handle: str
    asked_at: float


class ModelProvider:
    """Implements `domain.ports.Models`.

    If no default model is configured, it is the first model that an endpoint lists; the list is
    requested at most once a minute.

    Args:
        registry: The configured endpoints.
        factory: Creates the models.
        keyring: Decrypts the keys of projects and agents.
    """

    def __init__(
        self, registry: ModelRegistry, factory: ModelFactory, keyring: Keyring | None = None
    ) -> None:
        self._registry = registry
        self._factory = factory
        self._keyring = keyring or Keyring()
        # By endpoints with their keys, since the listed models may depend on the key.
        self._defaults: dict[tuple[ModelEndpoint, ...], _Default] = {}

    async def bind(
        self, config: ModelConfig, keys: Sequence[SealedKey] = (), *, as_fallback: bool = False
    ) -> BoundModel:
        """Chooses the model of an agent and prepares it for calls.

        Args:
            config: The agent's model settings.
            keys: The stored keys of the agent and of its project; they override the server's.
            as_fallback: The settings were made for another model: they are reduced to the known
                limits of this one.

        Raises:
            ModelError: NOT_CONFIGURED, or AUTHENTICATION if a stored key cannot be decrypted; the
                message says what to do.
        """
        handle = config.handle or await self.default_handle(keys)
        if not handle:
            raise ModelError(ModelErrorKind.NOT_CONFIGURED, HOW_TO_CONFIGURE)
        key = self._keyring.open_for(handle.partition("/")[0], keys)
        settings = self._registry.with_keys(key).resolve(
            handle,
            context_window=self._window_of(handle, config.context_window, as_fallback),
            max_tokens=self._output_limit(handle, config.max_output_tokens),
            temperature=config.temperature,
            parallel_tool_calls=config.parallel_tool_calls,
            # Each dialect maps "none" to the provider's way to turn reasoning off.
            reasoning_effort="none" if config.enable_reasoner is False else config.reasoning_effort,
            max_reasoning_tokens=config.max_reasoning_tokens,
            structured_tools=config.structured_tools,
            has_fallback=bool(config.fallback_models),
        )
        await self._factory.preload([settings.endpoint_type])
        return BoundModel(self._factory.model(settings), settings)

    async def preload(self) -> None:
        """Imports the SDKs of the configured endpoints, so that the first turn need not wait."""
        await self._factory.preload(endpoint.type for endpoint in self._registry.endpoints)

    def check(self, handle: str, field: str = "model.handle") -> None:
        """Refuses a handle that matches no configured endpoint.

        Without any endpoint every handle passes, since the model may be configured later.

        Raises:
            InvalidArgumentError: INVALID_FIELD; the message lists the known handles.
        """
        if not handle or not self._registry.endpoints:
            return
        try:
            self._registry.resolve(handle)
        except UnknownModelError as error:
            raise InvalidArgumentError(
                error.message, violations=[FieldViolation(field, error.message)]
            ) from error

    async def check_listed(
        self, handle: str, keys: Sequence[SealedKey] = (), field: str = "model.handle"
    ) -> None:
        """Refuses a handle if its provider does not have the model.

        The provider's list is checked first, then the single model, since some providers accept
        aliases that they do not list. Models that are configured by name are not checked. If the
        provider cannot be reached, the handle passes.

        Args:
            handle: ``provider/model``; an empty one passes.
            keys: The stored keys to use.
            field: The field of the request that holds the handle.

        Raises:
            InvalidArgumentError: INVALID_FIELD; the message lists models of the provider.
        """
        name, _, model = handle.partition("/")
        endpoint = next(
            (endpoint for endpoint in self._endpoints(keys) if endpoint.name == name), None
        )
        if endpoint is None or endpoint.models or handle == self._registry.default_handle:
            return
        [endpoint_models] = await self._factory.list_models([endpoint])
        names = [model.model for model in endpoint_models.models]
        if not names or model in names or await self._factory.has_model(endpoint, model):
            return
        similar_names = (
            get_close_matches(model, names, n=_MOST_NAMED, cutoff=0.3) or names[:_MOST_NAMED]
        )
        handles = ", ".join(map(endpoint.handle, similar_names))
        problem = f"{name} has no model {model!r}; it lists {handles}"
        raise InvalidArgumentError(
            f"{field}: {problem}. If it serves the model without listing it, the operator can name"
            " it in `models` of the endpoint (STRATA_AGENT_LOOP_MODEL_ENDPOINTS).",
            violations=[FieldViolation(field, problem)],
        )

    async def default_handle(self, keys: Sequence[SealedKey] = ()) -> str:
        """Returns the handle of the default model; empty if there is none.

        Args:
            keys: The stored keys to use.
        """
        configured = self._registry.default_handle
        if configured or not self._registry.endpoints:
            return configured
        handle = self._defaults.get(self._endpoints(keys))
        if handle is None or time.monotonic() - handle.asked_at > _LISTING_SECONDS:
            await self.list_models(keys)
            handle = self._defaults[self._endpoints(keys)]
        return handle.handle

    async def list_models(self, keys: Sequence[SealedKey] = ()) -> Sequence[EndpointModels]:
        """Lists the models of every endpoint; an endpoint that does not answer is listed too.

        Args:
            keys: The stored keys to use.
        """
        endpoints = self._endpoints(keys)
        endpoint_models = await self._factory.list_models(endpoints)
        handles = [model.handle for answer in endpoint_models for model in answer.models]
        if len(self._defaults) >= _MAX_DEFAULTS:
            self._defaults.clear()
        self._defaults[endpoints] = _Default(handles[0] if handles else "", time.monotonic())
        return endpoint_models

    async def probe(
        self,
        handle: str,
        keys: Sequence[SealedKey] = (),
        *,
        ask: bool = True,
        count: Count = uncounted,
    ) -> tuple[list[ModelFinding], list[str]]:
        """Probes a model: reads documentation tables, queries its server, and optionally the model.

        Args:
            handle: ``provider/model``.
            keys: The stored keys to use.
            ask: Also send tiny requests to the model.
            count: Counts the tokens of the replies.

        Returns:
            The findings, and a sentence for each problem.

        Raises:
            InvalidArgumentError: INVALID_FIELD: there is no such endpoint.
        """
        name, _, model = handle.partition("/")
        endpoint = next(
            (endpoint for endpoint in self._endpoints(keys) if endpoint.name == name), None
        )
        if endpoint is None or not model:
            endpoint_names = (
                ", ".join(endpoint.name for endpoint in self._registry.endpoints) or "none"
            )
            problem = f"there is no model {handle!r}; model endpoints: {endpoint_names}"
            raise InvalidArgumentError(
                f"handle: {problem}.", violations=[FieldViolation("handle", problem)]
            )
        findings, problems = documented(endpoint, model), []
        [endpoint_models] = await self._factory.list_models([endpoint])
        windows = {model.model: model.context_window for model in endpoint_models.models}
        if endpoint_models.error is not None:
            problems.append(
                f"The list of models could not be read: {endpoint_models.error.message}"
            )
        elif model not in windows:
            problems.append(f"{name} does not list the model.")
        if window := windows.get(model):
            findings.append(
                ModelFinding("context window", f"{window:,} tokens", "list of models", window)
            )
        findings += await ask_server(endpoint, model)
        if ask:
            try:
                bound = await self.bind(ModelConfig(handle=handle), keys)
                findings += await ask_model(bound.chat, handle, count)
            except ModelError as error:
                explained = naming_key(error, endpoint.key_described)
                problems.append(f"The model did not answer: {explained.message}")
        return findings, problems

    def _endpoints(self, keys: Sequence[SealedKey]) -> tuple[ModelEndpoint, ...]:
        return tuple(self._registry.with_keys(self._keyring.open_all(keys)).endpoints)

    @property
    def registry(self) -> ModelRegistry:
        """The configured endpoints."""
        return self._registry

    def _window_of(self, handle: str, requested: int | None, as_fallback: bool) -> int:
        """Returns the context window to use: the agent's setting, else the default.

        The model's known window limits the default, and for a fallback model also the setting.
        """
        endpoint = self._registry.endpoint_of(handle)
        model_window = (
            endpoint.window_of(handle.partition("/")[2]) if endpoint is not None else None
        )
        if requested is not None and not (as_fallback and model_window):
            return requested
        return min(requested or DEFAULT_CONTEXT_WINDOW, model_window or DEFAULT_CONTEXT_WINDOW)

    def _output_limit(self, handle: str, requested: int | None) -> int | None:
        """Returns the output limit, at most the model's: providers refuse larger ones."""
        endpoint = self._registry.endpoint_of(handle)
        model_limit = (
            endpoint.documented_limits(handle.partition("/")[2]) if endpoint is not None else None
        )
        return (
            min(requested, model_limit.max_output_tokens)
            if requested and model_limit
            else requested
        )
