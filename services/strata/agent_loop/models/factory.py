"""Opens the SDK clients, one per endpoint, and hands out models that share them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Self

from strata.agent_loop.models.domain import ChatModel, EndpointType, ModelSettings
from strata.agent_loop.models.errors import ModelError, ModelErrorKind, naming_key
from strata.agent_loop.models.registry import ModelEndpoint
from strata.agent_loop.models.streaming import RetryPolicy
from strata.agent_loop.models.structured import StructuredToolModel

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

LIST_TIMEOUT = 5.0
_PROVIDERS = {
    EndpointType.OPENAI: "strata.agent_loop.models.openai",
    EndpointType.ANTHROPIC: "strata.agent_loop.models.anthropic",
}


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model that an endpoint lists. `context_window` in tokens, None if it does not say."""

    handle: str
    endpoint: str
    model: str
    context_window: int | None


@dataclass(frozen=True, slots=True)
class EndpointModels:
    """What one endpoint answered; `error` tells why there are no models."""

    endpoint: str
    models: tuple[AvailableModel, ...]
    error: ModelError | None = None


class ModelFactory:
    """Builds models from settings. Close it at shutdown, after the last stream.

    Clients are opened on first use and kept: one per wire protocol and address, so that agents
    with keys of their own share the connections. An SDK takes a second or more to import and
    is imported when it is first needed: by `preload`, or else by `model`, which holds up everybody.
    """

    def __init__(self, retry: RetryPolicy | None = None) -> None:
        self._retry = retry or RetryPolicy()
        self._openai: dict[str, AsyncOpenAI] = {}
        self._anthropic: dict[str, AsyncAnthropic] = {}
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
        """Imports the SDKs of some wire protocols without holding up the event loop."""
        for kind in set(types) - self._imported:
            await asyncio.to_thread(_provider, kind)
            self._imported.add(kind)

    def model(self, settings: ModelSettings) -> ChatModel:
        """The model for these settings. What it learns about the server is kept between calls."""
        known = self._models.get(settings)
        if known is None:
            if len(self._models) >= _MAX_MODELS:
                self._models.clear()
            known = self._models[settings] = self._build(settings)
        return known

    async def list_models(
        self, endpoints: Sequence[ModelEndpoint], *, limit: float = LIST_TIMEOUT
    ) -> list[EndpointModels]:
        """Asks every endpoint, all at once, what models it has; never raises for one of them.

        Args:
            endpoints: Whom to ask.
            limit: Seconds for each of them.
        """
        return list(await asyncio.gather(*(self._list(e, limit) for e in endpoints)))

    async def close(self) -> None:
        """Closes all connections."""
        self._models.clear()
        await self._stack.aclose()
        self._openai.clear()
        self._anthropic.clear()

    def _build(self, settings: ModelSettings) -> ChatModel:
        provider = _provider(settings.endpoint_type)
        model: ChatModel
        if settings.endpoint_type is EndpointType.ANTHROPIC:
            client = self._anthropic_client(settings.base_url, settings.api_key)
            model = provider.AnthropicChatModel(client, settings, self._retry)
        else:
            model = provider.OpenAiChatModel(
                self._openai_client(settings.base_url, settings.api_key), settings, self._retry
            )
        return StructuredToolModel(model) if settings.structured_tools else model

    async def _list(self, endpoint: ModelEndpoint, limit: float) -> EndpointModels:
        try:
            async with asyncio.timeout(limit):
                found = await self._ask(endpoint)
        except ModelError as error:
            return EndpointModels(endpoint.name, (), naming_key(error, endpoint.key_described))
        except TimeoutError:
            message = f"The endpoint did not answer within {limit:g} s."
            return EndpointModels(endpoint.name, (), ModelError(ModelErrorKind.TIMEOUT, message))
        return EndpointModels(
            endpoint.name,
            tuple(
                AvailableModel(endpoint.handle(name), endpoint.name, name, window)
                for name, window in found
                if not endpoint.models or name in endpoint.models
            ),
        )

    async def _ask(self, endpoint: ModelEndpoint) -> list[tuple[str, int | None]]:
        await self.preload([endpoint.type])
        client: AsyncAnthropic | AsyncOpenAI
        if endpoint.type is EndpointType.ANTHROPIC:
            client = self._anthropic_client(endpoint.base_url, endpoint.api_key)
        else:
            client = self._openai_client(endpoint.base_url, endpoint.api_key)
        listed: list[tuple[str, int | None]]
        listed = await _provider(endpoint.type).list_models(client)
        return listed

    def _openai_client(self, base_url: str, api_key: str) -> AsyncOpenAI:
        client = self._openai.get(base_url)
        if client is None:
            client = self._openai[base_url] = _provider(EndpointType.OPENAI).open_client(
                base_url, ""
            )
            self._stack.push_async_callback(client.close)
        return client.with_options(api_key=api_key) if api_key else client

    def _anthropic_client(self, base_url: str, api_key: str) -> AsyncAnthropic:
        client = self._anthropic.get(base_url)
        if client is None:
            client = self._anthropic[base_url] = _provider(EndpointType.ANTHROPIC).open_client(
                base_url, ""
            )
            self._stack.push_async_callback(client.close)
        return client.with_options(api_key=api_key) if api_key else client


def _provider(kind: EndpointType) -> ModuleType:
    return importlib.import_module(_PROVIDERS[kind])


# Agents rarely differ in their settings; a bound is kept so that keys that change do not pile up.
_MAX_MODELS = 1000
