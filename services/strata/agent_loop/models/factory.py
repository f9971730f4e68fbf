"""Opens one SDK client per endpoint, and creates models that share it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from strata.agent_loop.domain.model.chat import ChatModel, EndpointType, ModelSettings
from strata.agent_loop.domain.model.errors import ModelError, ModelErrorKind, naming_key
from strata.agent_loop.models.dialects.base import EndpointConnection
from strata.agent_loop.models.dialects.table import dialect_of
from strata.agent_loop.models.metered_model import (
    SLOW_CALL_S,
    MeteredModel,
    ModelLabels,
    ModelMetrics,
)
from strata.agent_loop.models.registry import ModelEndpoint
from strata.agent_loop.models.streaming import RetryPolicy
from strata.agent_loop.models.structured_tools.chat_model import StructuredToolModel
from strata.shared.redaction import key_redactor
from strata.shared.telemetry import Telemetry

LIST_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model that an endpoint lists. `context_window` is in tokens; None if unknown."""

    handle: str
    endpoint: str
    model: str
    context_window: int | None


@dataclass(frozen=True, slots=True)
class EndpointModels:
    """The list of models of one endpoint; `error` is set if it could not be read."""

    endpoint: str
    models: tuple[AvailableModel, ...]
    error: ModelError | None = None


class ModelFactory:
    """Creates models from settings. Close it at shutdown, after the last stream.

    Clients are opened on first use and kept: one per wire protocol and address, so that agents
    with their own keys share the connections. An SDK takes a second or more to import and
    is imported when it is first needed: by `preload`, or else by `model`, which blocks the loop.

    Args:
        retry: When failed requests are repeated.
        telemetry: Gets the metrics of the models; None for no metrics.
        slow_s: Seconds from which on a call is logged as slow.
    """

    def __init__(
        self,
        retry: RetryPolicy | None = None,
        telemetry: Telemetry | None = None,
        *,
        slow_s: float = SLOW_CALL_S,
    ) -> None:
        self._slow_s = slow_s
        self._retry = retry or RetryPolicy()
        self._telemetry = telemetry or Telemetry()
        self._labels = ModelLabels()
        self._connections: dict[tuple[EndpointType, str], EndpointConnection] = {}
        self._models: dict[ModelSettings, ChatModel] = {}
        self._imported: set[EndpointType] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def preload(self, types: Iterable[EndpointType]) -> None:
        """Imports the SDKs of some wire protocols without blocking the event loop."""
        for kind in set(types) - self._imported:
            await asyncio.to_thread(dialect_of(kind).load)
            self._imported.add(kind)

    def model(self, settings: ModelSettings) -> ChatModel:
        """Returns the model for these settings, one object for all calls: it stores refusals."""
        model = self._models.get(settings)
        if model is None:
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()
            model = self._models[settings] = self._build(settings)
        return model

    async def list_models(
        self, endpoints: Sequence[ModelEndpoint], *, limit: float = LIST_TIMEOUT
    ) -> list[EndpointModels]:
        """Lists the models of all endpoints concurrently; errors are part of the result.

        Args:
            endpoints: The endpoints.
            limit: Time limit for each endpoint, in seconds.
        """
        return list(await asyncio.gather(*(self._list(e, limit) for e in endpoints)))

    async def has_model(
        self, endpoint: ModelEndpoint, name: str, *, limit: float = LIST_TIMEOUT
    ) -> bool:
        """Queries an endpoint for one model, which need not be in its list.

        Args:
            endpoint: The endpoint.
            name: The model's name at the endpoint.
            limit: Time limit in seconds.

        Returns:
            False only if the endpoint reports that there is no such model.
        """
        try:
            await self.preload([endpoint.type])
            async with asyncio.timeout(limit):
                return await self._connection_of(endpoint).has_model(endpoint.api_key, name)
        except (ModelError, TimeoutError):
            return True

    async def close(self) -> None:
        """Closes all connections."""
        self._models.clear()
        await self._stack.aclose()
        self._connections.clear()

    def _build(self, settings: ModelSettings) -> ChatModel:
        connection = self._connection(settings.endpoint_type, settings.base_url)
        metrics = ModelMetrics(self._telemetry, self._labels.of(settings.handle))
        retry = replace(self._retry, on_retry=metrics.note_retry)
        if settings.has_fallback:
            retry = retry.for_fallback()
        model = connection.chat_model(settings, retry)
        if settings.structured_tools:
            model = StructuredToolModel(model)
        return MeteredModel(model, metrics, settings, slow_s=self._slow_s)

    async def _list(self, endpoint: ModelEndpoint, limit: float) -> EndpointModels:
        try:
            # Before the time limit: importing an SDK takes seconds on a busy machine.
            await self.preload([endpoint.type])
            async with asyncio.timeout(limit):
                names = await self._ask(endpoint)
        except ModelError as error:
            redacted = error.redacted(key_redactor(endpoint.api_key, endpoint.base_url))
            return EndpointModels(endpoint.name, (), naming_key(redacted, endpoint.key_described))
        except TimeoutError:
            message = f"The endpoint did not answer within {limit:g} s."
            return EndpointModels(endpoint.name, (), ModelError(ModelErrorKind.TIMEOUT, message))
        return EndpointModels(
            endpoint.name,
            tuple(
                AvailableModel(endpoint.handle(name), endpoint.name, name, window)
                for name, window in names
                if not endpoint.models or name in endpoint.models
            ),
        )

    async def _ask(self, endpoint: ModelEndpoint) -> list[tuple[str, int | None]]:
        return await self._connection_of(endpoint).list_models(endpoint.api_key)

    def _connection_of(self, endpoint: ModelEndpoint) -> EndpointConnection:
        return self._connection(endpoint.type, endpoint.base_url)

    def _connection(self, kind: EndpointType, base_url: str) -> EndpointConnection:
        connection = self._connections.get((kind, base_url))
        if connection is None:
            connection = dialect_of(kind).load().connect(base_url)
            self._connections[kind, base_url] = connection
            self._stack.push_async_callback(connection.close)
        return connection


# Agents rarely differ in their settings; the bound keeps changed keys from accumulating.
_MAX_MODELS = 1000
