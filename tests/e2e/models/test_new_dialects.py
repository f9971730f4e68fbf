"""A wire protocol and a service need one file and one entry each: this file adds both."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar

import pytest

from doubles.bench import collect, request
from strata.agent_loop.domain.agent.agents import ModelConfig
from strata.agent_loop.domain.model.chat import (
    ChatModel,
    FinishReason,
    ImagePart,
    ModelEvent,
    ModelReply,
    ModelRequest,
    ModelSettings,
    TextDelta,
    TextPart,
)
from strata.agent_loop.models.dialects.base import Dialect
from strata.agent_loop.models.dialects.table import DIALECTS
from strata.agent_loop.models.factory import ModelFactory
from strata.agent_loop.models.image_tokens import image_tokens
from strata.agent_loop.models.presets.base import Preset
from strata.agent_loop.models.presets.fields import settings_of_presets
from strata.agent_loop.models.presets.table import PRESETS
from strata.agent_loop.models.provider import ModelProvider
from strata.agent_loop.models.registry import ModelRegistry
from strata.agent_loop.models.streaming import RetryPolicy
from strata.agent_loop.models.tokens import estimate_usage
from strata.agent_loop.settings import EndpointSettings
from strata.shared.usage import Usage
from strata.standalone.settings import environment_of_service


class EchoModel:
    """Answers with the last message of the user."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        text = f"{self._settings.model}: {request.messages[-1].text}"
        yield TextDelta(text)
        usage = estimate_usage(request, text, self._settings.endpoint_type)
        yield ModelReply((TextPart(text),), (), FinishReason.STOP, usage)


class EchoConnection:
    """Counts how often it was opened and closed."""

    opened: ClassVar[list[str]] = []
    closed: ClassVar[list[str]] = []

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self.opened.append(base_url)

    def chat_model(self, settings: ModelSettings, retry: RetryPolicy) -> ChatModel:
        return EchoModel(settings)

    async def list_models(self, api_key: str) -> list[tuple[str, int | None]]:
        return [(f"of-{api_key}", 12_000)]

    async def has_model(self, api_key: str, name: str) -> bool:
        return name == "unlisted"

    async def close(self) -> None:
        self.closed.append(self._base_url)


def connect(base_url: str) -> EchoConnection:
    return EchoConnection(base_url)


ECHO = Dialect("echo", adapter=__name__, bytes_per_token=1.0, image_tokens=lambda _: 7)
SERVICE = Preset("parrot", "Parrot", "PARROT", base_url="echo://parrot", dialect="echo")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, ECHO.name, ECHO)
    monkeypatch.setitem(PRESETS, SERVICE.name, SERVICE)
    EchoConnection.opened.clear()
    EchoConnection.closed.clear()


@pytest.mark.usefixtures("registered")
async def test_a_new_dialect_and_a_new_service_need_one_entry_each() -> None:
    endpoint = EndpointSettings(name="p", preset="parrot", api_key="key")
    registry = ModelRegistry([endpoint.endpoint()])
    async with ModelFactory() as factory:
        provider = ModelProvider(registry, factory)
        [listed] = await provider.list_models()
        bound = await provider.bind(ModelConfig("p/m"))
        _, reply = await collect(bound.chat, request("hello"))
        await provider.check_listed("p/unlisted")
    assert [(model.handle, model.context_window) for model in listed.models] == [
        ("p/of-key", 12_000)
    ]
    assert reply.text == "m: hello"
    assert reply.usage.completion_tokens == len("m: hello")
    assert EchoConnection.opened == EchoConnection.closed == ["echo://parrot"]


@pytest.mark.usefixtures("registered")
def test_a_new_service_has_settings_that_only_the_agent_loop_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARROT_API_KEY", "key")
    assert settings_of_presets()().model_dump()["parrot_api_key"] == "key"
    assert environment_of_service("agent_loop")["PARROT_API_KEY"] == "key"
    assert "PARROT_API_KEY" not in environment_of_service("recall")


@pytest.mark.usefixtures("registered")
def test_token_counts_follow_the_dialect() -> None:
    assert image_tokens("echo", ImagePart("image/png")) == 7
    assert estimate_usage(ModelRequest([]), "four", "echo") == Usage(0, 4, estimated=True)


@pytest.mark.parametrize("field", ["type", "preset"])
def test_unknown_names_are_refused_with_those_that_are_known(field: str) -> None:
    with pytest.raises(ValueError, match="openai"):
        EndpointSettings.model_validate({"name": "x", field: "nonsense"})
